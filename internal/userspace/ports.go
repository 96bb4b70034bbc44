package userspace

import (
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/forward"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// ports are the open listeners of all Services.
type ports struct {
	forwarder *forward.Forwarder
	services  map[model.ServiceID][]port
	// unbound contains the reasons why the machine lacks addresses.
	unbound map[netip.Addr]error
}

// port is a frontend and how it is served.
type port struct {
	frontend
	shown view.ForwardedPort
	err   error
}

// update opens, changes and closes the listeners of some Services, and returns the ports that look different now. A
// Service with no frontends has been deleted. It does not touch the listeners of other Services.
func (p *ports) update(wanted map[model.ServiceID][]frontend) (changed []view.ForwardedPort) {
	for id, frontends := range wanted { // first, because a port may move from one Service to another
		for _, old := range p.services[id] {
			if !slices.ContainsFunc(frontends, func(f frontend) bool { return f.listen == old.listen }) {
				_ = p.forwarder.Remove(old.listen) // the socket is closed even if close fails
			}
		}
	}
	for id, frontends := range wanted {
		before := p.services[id]
		delete(p.services, id)
		for _, f := range frontends {
			now := p.open(f)
			p.services[id] = append(p.services[id], now)
			if !slices.ContainsFunc(before, func(old port) bool { return old.shown == now.shown }) {
				changed = append(changed, now.shown)
			}
		}
		for _, old := range before {
			if !slices.ContainsFunc(p.services[id], func(now port) bool { return now.shown.SamePort(old.shown) }) {
				old.shown.State, old.shown.Reason = view.PortClosed, ""
				changed = append(changed, old.shown)
			}
		}
	}
	slices.SortFunc(changed, view.ForwardedPort.Compare)
	return changed
}

func (p *ports) open(f frontend) port {
	at, err := p.forwarder.Set(f.listen, f.target)
	shown := view.ForwardedPort{
		Namespace: f.owner.Service.Namespace, Name: f.owner.Service.Name, Port: f.owner.Port, Protocol: f.protocol.String(),
		Address: at, Serves: f.serves, Endpoints: f.taking(), ProxyProtocol: int(f.target.Header), State: view.PortListening,
	}
	if reason := p.unbound[f.address]; err != nil && reason != nil {
		err = reason
	}
	if err != nil {
		shown.Address, shown.State, shown.Reason = f.listen.At, view.PortFailed, err.Error()
	}
	return port{f, shown, err}
}

// failed returns the frontends of the Services with a listener that could not be opened.
func (p *ports) failed() map[model.ServiceID][]frontend {
	again := map[model.ServiceID][]frontend{}
	for id, list := range p.services {
		if slices.ContainsFunc(list, func(one port) bool { return one.err != nil }) {
			for _, one := range list {
				again[id] = append(again[id], one.frontend)
			}
		}
	}
	return again
}

// problems returns why listeners of a Service serve nobody.
func (p *ports) problems(id model.ServiceID) (all []model.Problem) {
	for _, one := range p.services[id] {
		if one.err != nil {
			all = append(all, one.problem(one.err))
		}
	}
	slices.SortFunc(all, model.Problem.Compare)
	return all
}
