package userspace

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/forward/virtual"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// frontends returns the listeners of a Service.
func (l *loop) frontends(id model.ServiceID) (all []frontend) {
	if l.Host != nil {
		for _, s := range l.cluster.AtAddresses(id) {
			all = append(all, frontendAt(s, l.clients(s.Server)))
		}
		return all
	}
	for _, s := range l.cluster.Forwarded(id) {
		all = append(all, frontendOf(s))
	}
	return all
}

// frontendAt returns the listener of a virtual server at its own address, for the given clients; nil means all.
func frontendAt(s compile.AtAddress, clients []netip.Prefix) frontend {
	f := frontend{
		owner: s.Owner, protocol: s.Key.Protocol, serves: s.Key.Addr.String(), target: virtual.Target(s.Server.Server, s.Destinations),
		listen: virtual.Listen(s.Key),
	}
	f.target.Clients = clients
	if s.NodePort {
		f.serves = nodePort(s.Key.Addr)
	}
	if !s.Unbound {
		f.address = s.Key.Addr.Addr()
	}
	return f
}

// clients returns the clients that a virtual server admits; nil means all. A client on the machine may have the virtual server's own
// address, because the machine has it.
func (l *loop) clients(s *want.Server) []netip.Prefix {
	clients, open := l.admission.Admitted(s.Key, kernel.MembersOf(s.Members), l.addresses)
	if !open {
		return []netip.Prefix{}
	}
	admits := func(a netip.Addr) bool {
		return slices.ContainsFunc(clients, func(r netip.Prefix) bool { return r.Contains(a) })
	}
	if self := s.Key.Addr.Addr(); !admits(self) && slices.ContainsFunc(l.addresses, admits) {
		clients = append(clients, netip.PrefixFrom(self, self.BitLen()))
	}
	return clients
}

// learnNode reads the machine's addresses, and tells compile. changed is true if the machine has other addresses than before.
func (l *loop) learnNode() (changed bool, err error) {
	if l.Host == nil {
		return false, nil
	}
	node, err := l.Host.Node()
	if err != nil {
		return false, err
	}
	addresses := append([]netip.Addr{}, node.Addresses...)
	changed, l.addresses = !slices.Equal(l.addresses, addresses), addresses
	l.cluster.Learn(compile.Facts{Addresses: addresses, Network: node.Network})
	return changed, nil
}

// keepAll adds the addresses of all Services to the machine, and removes those of other Services. changed contains the frontends of changed
// Services.
func (l *loop) keepAll(changed map[model.ServiceID][]frontend) {
	wanted := map[netip.Addr]struct{}{}
	add := func(f frontend) {
		if f.address.IsValid() {
			wanted[f.address] = struct{}{}
		}
	}
	for id, list := range l.ports.services {
		if _, isChanged := changed[id]; !isChanged {
			for _, p := range list {
				add(p.frontend)
			}
		}
	}
	for _, list := range changed {
		for _, f := range list {
			add(f)
		}
	}
	l.keepOnly(wanted)
}

// keepOnly tells the machine which addresses of Services it should have.
func (l *loop) keepOnly(wanted map[netip.Addr]struct{}) {
	failed, err := l.Host.Keep(wanted)
	l.ports.unbound = failed
	for a, why := range failed {
		if _, isWanted := wanted[a]; !isWanted { // no port shows this error
			err = errors.Join(err, why)
		}
	}
	if text := fmt.Sprint(err); err != nil && text != l.kept {
		l.Log.Warn("addresses of Services could not be changed", zap.Error(err))
	}
	l.kept = fmt.Sprint(err)
}
