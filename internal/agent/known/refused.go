package known

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

func (e *refusal) problem(id model.ServiceID, mode kernel.Mode) model.Problem {
	p := model.Problem{Object: id.Ref(), Service: id}
	consequence := "not served there"
	switch o := e.op.Object.(type) {
	case kernel.Server:
		p.Field, p.Value = "ports", o.Key.String()
		p.Remedy = "change the annotation or field that distinguishes this Service from others"
	case kernel.ServerDestination:
		p.Field, p.Value = "endpoint", o.Addr.String()
		consequence = "this endpoint gets no traffic"
		p.Remedy = "give the endpoint an address and a weight that the kernel accepts"
	case kernel.Member:
		p.Field, p.Value = "set entry", o.String()
	case kernel.BoundAddress:
		p.Field, p.Value = "address", o.Addr.String()
		p.Remedy = "give the Service another address"
	}
	if e.op.Verb == kernel.Delete {
		consequence, p.Remedy = "it stays in the kernel", "run `"+e.op.String()+"` on the node"
		switch words := e.op.In(mode); {
		case words == e.op.String():
		case mode == kernel.Userspace:
			p.Remedy = "restart the agent"
		default:
			p.Remedy = words + ", table inet kube-ipvs"
		}
	}
	p.Reason = consequence + ": the kernel refuses it (" + e.err.Error() + "); the agent retries with exponential backoff"
	return p
}

// ownersOf returns the Services that want an object. It searches all virtual servers only if no owner is known from an earlier call.
func ownersOf(op kernel.Op, w *diff.Target, known []model.ServiceID) []model.ServiceID {
	var keys []kernel.ServerKey
	switch o := op.Object.(type) {
	case kernel.Server:
		keys = []kernel.ServerKey{o.Key}
	case kernel.ServerDestination:
		keys = []kernel.ServerKey{o.Server}
	case kernel.BoundAddress:
		keys = w.ServersAt(o.Addr)
	case kernel.Member:
		if keys = serversAt(o, w); len(keys) > 0 {
			break
		}
		if len(known) > 0 {
			return known
		}
		keys = serversWith(o, w)
	}
	owners := map[model.ServiceID]struct{}{}
	for _, key := range keys {
		if server := w.Server(key); server != nil {
			owners[server.Owner.Service] = struct{}{}
		}
	}
	return slices.SortedFunc(maps.Keys(owners), model.ServiceID.Compare)
}

// serversAt returns the virtual servers at the address of a set entry.
func serversAt(m kernel.Member, w *diff.Target) []kernel.ServerKey {
	named := w.Match(kernel.ServerKey{Addr: netip.AddrPortFrom(m.Element.Addr, m.Element.Port), Protocol: m.Element.Protocol})
	if server := w.Server(named); server != nil && slices.Contains(server.Members, m) {
		return []kernel.ServerKey{named}
	}
	return w.ServersAt(m.Element.Addr)
}

// Set entries for endpoints do not name their virtual server, so serversWith searches all virtual servers.
func serversWith(m kernel.Member, w *diff.Target) (keys []kernel.ServerKey) {
	for key, server := range w.Servers {
		if slices.Contains(server.Members, m) {
			keys = append(keys, key)
		}
	}
	return keys
}
