package machine

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/doctor"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// Agent contains the responses of this node's agent to doctor.
type Agent struct {
	// View describes a sample of the Services; nil if no agent responds. Silence is the reason.
	View    *view.View
	Silence error
	// About returns the Services at an address.
	About func(context.Context, netip.Addr) ([]view.Service, error)
}

// maxSuspects limits the virtual servers that doctor examines because of foreign rules.
const maxSuspects = 12

// follow reads the kernel and traces paths to the Services of the agent's sample, or to some virtual servers if no agent responds. A foreign
// rule may stop packets to Services outside the sample, so follow traces packets to one of these, too.
func (m *Machine) follow(ctx context.Context, a Agent, look Look, facts *doctor.Facts) *explain.Kernel {
	look.Ours = agentRules(a.View)
	look.Sysctls = view.BaseOf(plainBase(kernel.IPVSWithIPTables, false), 0).Sysctls
	if a.View != nil {
		look.Sysctls = a.View.Base.Sysctls
	}
	clients := doctor.Clients(a.View)
	s := newSelection(a.View, nil)
	k := m.Kernel(ctx, s.look(look, clients))
	suspects, left := k.Suspects(clients, maxSuspects)
	if left > 0 {
		facts.Unread = append(facts.Unread, fmt.Sprintf("foreign rules against single Services: too many rules; %d virtual servers are not traced", left))
	}
	if slices.ContainsFunc(suspects, func(key kernel.ServerKey) bool { return !s.has(key) }) {
		facts.View = a.with(ctx, suspects, facts)
		s = newSelection(facts.View, suspects)
		k = m.Kernel(ctx, s.look(look, clients))
	}
	base := closestBase(k)
	if a.View != nil {
		base = a.View.Base
	} else {
		s.paths = s.sample.Paths(k)
	}
	for _, p := range s.paths {
		facts.Walks = append(facts.Walks, doctor.Walked(p, explain.Explain(k, facts.View, base, p.Question)))
	}
	return k
}

// with returns the view, including the Services of some frontends.
func (a Agent) with(ctx context.Context, frontends []kernel.ServerKey, facts *doctor.Facts) *view.View {
	if a.View == nil {
		return nil
	}
	v := *a.View
	v.Services = slices.Clone(v.Services)
	asked := map[netip.Addr]bool{}
	for _, key := range frontends {
		addr := key.Addr.Addr()
		if asked[addr] {
			continue
		}
		asked[addr] = true
		services, err := a.About(ctx, addr)
		if err != nil {
			facts.Unread = append(facts.Unread, fmt.Sprintf("foreign rules against Services at %s: %v", addr, err))
		}
		for _, s := range services {
			known := slices.ContainsFunc(v.Services, func(o view.Service) bool { return o.ID() == s.ID() })
			if !known && slices.ContainsFunc(s.Frontends, func(f view.Frontend) bool { return isFrontendOf(frontends, f) }) {
				v.Services = append(v.Services, s)
			}
		}
	}
	return &v
}

func isFrontendOf(keys []kernel.ServerKey, f view.Frontend) bool {
	return slices.ContainsFunc(keys, func(k kernel.ServerKey) bool { return k.Addr == f.Address && k.Protocol.String() == f.Protocol })
}

// selection contains the paths to trace: those to the Services of a view, or those to a sample of virtual servers, which is known once the
// kernel has been read.
type selection struct {
	paths   []doctor.Path
	concern map[kernel.ServerKey]bool
	sample  *doctor.Sample // nil if there is a view
}

func newSelection(v *view.View, suspects []kernel.ServerKey) *selection {
	s := &selection{paths: doctor.Paths(v, suspects), concern: map[kernel.ServerKey]bool{}}
	if v == nil {
		s.sample = &doctor.Sample{Suspects: suspects}
	}
	for _, p := range s.paths {
		s.concern[p.To], s.concern[p.To.AllPorts()] = true, true
	}
	return s
}

func (s *selection) has(key kernel.ServerKey) bool {
	if s.sample != nil && !s.concern[key] {
		s.concern[key] = s.sample.Take(key)
	}
	return s.concern[key]
}

func (s *selection) look(at Look, clients []netip.Addr) Look {
	at.Concerns, at.Clients = s.has, slices.Clone(clients)
	for _, p := range s.paths {
		at.Clients = append(at.Clients, p.From)
	}
	return at
}
