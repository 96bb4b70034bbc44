// Package loopback serves node ports on 127.0.0.1 and ::1. IPVS cannot do this, because the kernel drops packets that
// leave the node with a loopback source address. The agent's process accepts connections on these addresses and
// connects to the node port on another address of the node, so the policies of IPVS still apply.
//
// The loop calls [Ports.Update], which records the wanted ports and never blocks; [Ports.Run] opens and closes the ports.
//
// May import: forward, inet and model (values).
package loopback

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/forward"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// retry is the interval between attempts to open a port. grace is how long the agent waits for open connections that
// carry data to end when it stops.
const retry, grace = 10 * time.Second, 10 * time.Second

// Ports serves node ports on loopback addresses.
type Ports struct {
	forwarder *forward.Forwarder
	wake      chan struct{}

	mu        sync.Mutex
	addresses []netip.Addr
	ports     map[model.ServiceID][]model.LoopbackPort

	// Only Run uses open and reported.
	open     map[forward.Listen]netip.AddrPort
	reported map[model.ServiceID]string
}

// New returns Ports that do not listen until Run is called.
func New(limits forward.Limits) *Ports {
	return &Ports{
		forwarder: forward.New(limits), wake: make(chan struct{}, 1), ports: map[model.ServiceID][]model.LoopbackPort{},
		open: map[forward.Listen]netip.AddrPort{}, reported: map[model.ServiceID]string{},
	}
}

// Counts returns statistics about the ports' clients.
func (p *Ports) Counts() forward.Counts { return p.forwarder.Counts() }

// Update sets the loopback addresses that serve node ports, and the ports of the Services in the map. The ports of
// other Services do not change.
func (p *Ports) Update(addresses []netip.Addr, ports map[model.ServiceID][]model.LoopbackPort) {
	p.mu.Lock()
	changed := !slices.Equal(p.addresses, addresses)
	p.addresses = addresses
	for id, list := range ports {
		if slices.Equal(p.ports[id], list) {
			continue
		}
		if changed = true; len(list) == 0 {
			delete(p.ports, id)
		} else {
			p.ports[id] = list
		}
	}
	p.mu.Unlock()
	if !changed {
		return
	}
	select {
	case p.wake <- struct{}{}:
	default: // awake already
	}
}

// Run keeps the ports open until the context ends. It calls failed when ports of a Service cannot be opened, and again when the reason
// changes. The error is nil once all ports are open.
func (p *Ports) Run(ctx context.Context, failed func(id model.ServiceID, err error)) {
	defer p.forwarder.Close(grace)
	timer := time.NewTimer(retry)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-timer.C:
		}
		timer.Stop()
		errs := p.settle()
		p.report(errs, failed)
		if len(errs) > 0 {
			timer.Reset(retry)
		}
	}
}

// settle opens and closes ports. It returns an error for each Service with a port that could not be opened.
func (p *Ports) settle() map[model.ServiceID]error {
	wanted := p.wanted()
	for at := range p.open {
		if _, ok := wanted[at]; !ok {
			_ = p.forwarder.Remove(at) // the socket is closed even if close fails
			delete(p.open, at)
		}
	}
	errs := map[model.ServiceID]error{}
	for at, port := range wanted {
		if now, ok := p.open[at]; ok && now == port.to {
			continue
		}
		if _, err := p.forwarder.Set(at, forward.To(port.to)); err != nil {
			if first := errs[port.owner]; first == nil || err.Error() < first.Error() {
				errs[port.owner] = err
			}
			continue
		}
		p.open[at] = port.to
	}
	return errs
}

// report calls failed for each Service whose error is new, different or resolved.
func (p *Ports) report(errs map[model.ServiceID]error, failed func(id model.ServiceID, err error)) {
	for id, err := range errs {
		if p.reported[id] != err.Error() {
			p.reported[id] = err.Error()
			failed(id, err)
		}
	}
	for id := range maps.Clone(p.reported) {
		if errs[id] == nil {
			delete(p.reported, id)
			failed(id, nil)
		}
	}
}

type port struct {
	owner model.ServiceID
	to    netip.AddrPort
}

var protocols = map[inet.Protocol]forward.Protocol{inet.TCP: forward.TCP, inet.UDP: forward.UDP}

// wanted returns all ports that should be open. It omits SCTP, which few platforms support in user space. If two Services have the same port,
// the first by name gets it.
func (p *Ports) wanted() map[forward.Listen]port {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[forward.Listen]port{}
	for id, ports := range p.ports {
		for _, np := range ports {
			protocol, ok := protocols[np.Protocol]
			for _, addr := range p.addresses {
				at := forward.Listen{Protocol: protocol, At: netip.AddrPortFrom(addr, np.Number)}
				if other, taken := all[at]; ok && inet.FamilyOf(addr) == inet.FamilyOf(np.To.Addr()) && (!taken || id.Compare(other.owner) < 0) {
					all[at] = port{id, np.To}
				}
			}
		}
	}
	return all
}
