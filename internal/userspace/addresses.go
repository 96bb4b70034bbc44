package userspace

import (
	"errors"
	"fmt"
	"net/netip"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/forward"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// frontends returns the listeners of a Service.
func (l *loop) frontends(id model.ServiceID) (all []frontend) {
	if l.Host != nil {
		for _, s := range l.cluster.AtAddresses(id) {
			all = append(all, frontendAt(s))
		}
		return all
	}
	for _, s := range l.cluster.Forwarded(id) {
		all = append(all, frontendOf(s))
	}
	return all
}

// frontendAt returns the listener of a virtual server at its own address.
func frontendAt(s compile.AtAddress) frontend {
	f := frontend{
		owner: s.Owner, protocol: s.Key.Protocol, serves: s.Key.Addr.String(), target: targetOf(s.Server), restricted: s.Restricted,
		listen: forward.Listen{Protocol: forward.Protocol(s.Key.Protocol.String()), At: s.Key.Addr},
	}
	if s.NodePort {
		f.serves = nodePort(s.Key.Addr)
	}
	if !s.Unbound {
		f.address = s.Key.Addr.Addr()
	}
	return f
}

// learnNode reads the machine's addresses, and tells compile.
func (l *loop) learnNode() error {
	if l.Host == nil {
		return nil
	}
	node, err := l.Host.Node()
	if err != nil {
		return err
	}
	l.cluster.Learn(compile.Facts{Addresses: append([]netip.Addr{}, node.Addresses...), Network: node.Network})
	return nil
}

// keep adds the addresses of all Services to the machine, and removes those of other Services. changed contains the frontends of changed
// Services. Nil removes all addresses.
func (l *loop) keep(changed map[model.ServiceID][]frontend) {
	wanted := map[netip.Addr]struct{}{}
	want := func(f frontend) {
		if f.address.IsValid() {
			wanted[f.address] = struct{}{}
		}
	}
	if changed != nil {
		for id, list := range l.ports.services {
			if _, isChanged := changed[id]; !isChanged {
				for _, p := range list {
					want(p.frontend)
				}
			}
		}
		for _, list := range changed {
			for _, f := range list {
				want(f)
			}
		}
	}
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
