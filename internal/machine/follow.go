package machine

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/doctor"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/status"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// samplePatience is how long doctor waits for the agent. After ten seconds, a busy agent answers with its previous view.
const samplePatience = 20 * time.Second

// Agent contains the response of this node's agent to doctor.
type Agent struct {
	// View describes a sample of the Services; nil if no agent responds. Silence is the reason.
	View    *view.View
	Silence error
	socket  string
}

// AskSample asks the agent for the Services that doctor examines.
func AskSample(ctx context.Context, socket string) (a Agent, err error) {
	ctx, stop := context.WithTimeout(ctx, samplePatience)
	defer stop()
	a.socket = socket
	a.View, a.Silence, err = status.Ask(ctx, socket, agent.Query{Sample: true})
	return a, err
}

// at returns the Services at an address.
func (a Agent) at(ctx context.Context, addr netip.Addr) ([]view.Service, error) {
	ctx, stop := context.WithTimeout(ctx, samplePatience)
	defer stop()
	v, silence, err := status.Ask(ctx, a.socket, agent.Query{Address: addr})
	if v == nil {
		return nil, cmp.Or(err, silence)
	}
	return v.Services, err
}

// maxSuspects limits the connections that doctor examines because of foreign rules. maxHalfOpen limits the half-open connections of outside clients.
const (
	maxSuspects = 12
	maxHalfOpen = 2
)

// follow reads the kernel and traces paths to the Services of the agent's sample, or to some virtual servers if no agent responds. A foreign
// rule may stop packets to Services outside the sample, or packets of other pods, so follow traces some of these packets, too.
func (m *Machine) follow(ctx context.Context, a Agent, look Look, facts *doctor.Facts) *explain.Kernel {
	look.Ours, look.Sysctls = agentRules(a.View), baseOf(a.View).Sysctls
	facts.ReadPods(m.Host(ctx))
	choice := doctor.Choice{Pods: facts.ClientPods()}
	look.Others, look.Outsiders = choice.Pods, true
	s := newSelection(a.View, choice)
	k := m.read(ctx, s, look, choice)
	s.suspect(k, &choice, facts)
	var missing []kernel.ServerKey
	for _, q := range choice.Connections {
		if !s.has(q.To) && !slices.Contains(missing, q.To) {
			missing = append(missing, q.To)
		}
	}
	if len(missing) > 0 {
		facts.View = a.with(ctx, missing, facts)
	}
	if next := newSelection(facts.View, choice); len(missing) > 0 || !s.covers(next) {
		s = next
		k = m.read(ctx, s, look, choice)
	}
	base := closestBase(k)
	if a.View != nil {
		base = a.View.Base
	}
	for _, p := range s.paths {
		facts.Walks = append(facts.Walks, doctor.Walked(p, explain.Explain(k, facts.View, base, p.Question)))
	}
	return k
}

// read reads the kernel for a selection. If there is no view, it also selects the paths.
func (m *Machine) read(ctx context.Context, s *selection, look Look, choice doctor.Choice) *explain.Kernel {
	clients := doctor.Clients(choice.Pods)
	for _, q := range choice.Connections {
		clients = append(clients, q.From)
	}
	k := m.Kernel(ctx, s.look(look, clients))
	if s.sample != nil {
		s.paths = s.sample.Paths(k)
	}
	return k
}

// suspect adds connections to the choice: those that foreign rules may break, and half-open connections of outside clients. It moves pods to the end
// if a network policy stops them, because this is intended.
func (s *selection) suspect(k *explain.Kernel, choice *doctor.Choice, facts *doctor.Facts) {
	search := explain.Search{Clients: doctor.Clients(choice.Pods), Pods: choice.Pods, Limit: maxSuspects}
	for _, p := range s.paths {
		search.Sample = append(search.Sample, p.To)
	}
	suspects := k.Suspects(search)
	if suspects.Untraced > 0 {
		facts.Unread = append(facts.Unread, fmt.Sprintf("foreign rules against single Services or pods: too many rules; %d connections are not traced", suspects.Untraced))
	}
	policed := func(pod netip.Addr) bool { return slices.Contains(suspects.Policed, pod) }
	pods := choice.Pods
	choice.Pods = slices.DeleteFunc(slices.Clone(pods), policed)
	choice.Pods = append(choice.Pods, slices.DeleteFunc(slices.Clone(pods), func(pod netip.Addr) bool { return !policed(pod) })...)
	choice.Connections = append(suspects.Connections, doctor.HalfOpen(k, maxHalfOpen)...)
}

// covers reports whether the selection includes all paths of another one.
func (s *selection) covers(next *selection) bool {
	if next.sample != nil && len(next.sample.Connections) > 0 {
		return false
	}
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
		services, err := a.at(ctx, addr)
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
		s.sample = &doctor.Sample{Choice: choice}
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
