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

// maxSuspects limits the virtual servers that doctor examines because of foreign rules, and maxVictims the connections of single pods.
// maxHalfOpen limits the half-open connections of clients outside that doctor examines.
const (
	maxSuspects = 12
	maxVictims  = 4
	maxHalfOpen = 2
)

// follow reads the kernel and traces paths to the Services of the agent's sample, or to some virtual servers if no agent responds. A foreign
// rule may stop packets to Services outside the sample, or packets of other pods, so follow traces some of these packets, too.
func (m *Machine) follow(ctx context.Context, a Agent, look Look, facts *doctor.Facts) *explain.Kernel {
	look.Ours = agentRules(a.View)
	look.Sysctls = view.BaseOf(plainBase(kernel.IPVSWithIPTables, false), 0).Sysctls
	if a.View != nil {
		look.Sysctls = a.View.Base.Sysctls
	}
	facts.ReadPods(m.Host(ctx))
	choice := doctor.Choice{Pods: facts.ClientPods()}
	look.Others, look.Outsiders = choice.Pods, true
	s := newSelection(a.View, choice)
	k := m.Kernel(ctx, s.look(look, doctor.Clients(choice.Pods)))
	s.suspect(k, &choice, facts)
	missing := slices.DeleteFunc(choice.Targets(), s.has)
	if len(missing) > 0 {
		facts.View = a.with(ctx, missing, facts)
	}
	if next := newSelection(facts.View, choice); len(missing) > 0 || !s.covers(next) {
		s = next
		k = m.Kernel(ctx, s.look(look, doctor.Clients(choice.Pods)))
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

// suspect adds the connections to the choice that foreign rules may stop, and half-open connections of clients outside. Pods that a network policy
// stops come last, because that is intended.
func (s *selection) suspect(k *explain.Kernel, choice *doctor.Choice, facts *doctor.Facts) {
	var left int
	if choice.Servers, left = k.Suspects(doctor.Clients(choice.Pods), maxSuspects); left > 0 {
		facts.Unread = append(facts.Unread, fmt.Sprintf("foreign rules against single Services: too many rules; %d virtual servers are not traced", left))
	}
	var known []explain.Question
	for _, p := range s.paths {
		if slices.Contains(choice.Pods, p.From) {
			known = append(known, p.Question)
		}
	}
	victims, policed, left := k.Victims(known, choice.Pods, maxVictims)
	if left > 0 {
		facts.Unread = append(facts.Unread, fmt.Sprintf("foreign rules against single pods: too many rules; packets of %d pods are not traced", left))
	}
	free := slices.DeleteFunc(slices.Clone(choice.Pods), func(pod netip.Addr) bool { return slices.Contains(policed, pod) })
	choice.Pods = append(free, policed...)
	choice.Connections = append(victims, doctor.HalfOpen(k, maxHalfOpen)...)
}

// covers reports whether the selection includes all paths of another one.
func (s *selection) covers(next *selection) bool {
	return !slices.ContainsFunc(next.paths, func(p doctor.Path) bool {
		return !slices.ContainsFunc(s.paths, func(o doctor.Path) bool { return o.Question == p.Question })
	})
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
			if !known && slices.ContainsFunc(s.Frontends, func(f view.Frontend) bool { return slices.ContainsFunc(frontends, f.Is) }) {
				v.Services = append(v.Services, s)
			}
		}
	}
	return &v
}

// selection contains the paths to trace: those to the Services of a view, or those to a sample of virtual servers, which is known once the
// kernel has been read.
type selection struct {
	paths   []doctor.Path
	concern map[kernel.ServerKey]bool
	sample  *doctor.Sample // nil if there is a view
}

func newSelection(v *view.View, choice doctor.Choice) *selection {
	s := &selection{paths: doctor.Paths(v, choice), concern: map[kernel.ServerKey]bool{}}
	if v == nil {
		s.sample = &doctor.Sample{Suspects: choice.Servers}
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
