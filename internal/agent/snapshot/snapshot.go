// Package snapshot defines the data that the loop provides for a view. A snapshot contains references to immutable
// values. View builds the document in the request's goroutine (I10).
//
// May import: agent/drain, agent/slowstart, compile, kernel, model, view, want.
package snapshot

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/drain"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/slowstart"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Snapshot is the state of the loop at a point in time.
type Snapshot struct {
	Time                         time.Time
	Agent                        view.Agent
	Totals                       view.Totals
	Addresses, LoopbackAddresses []netip.Addr

	Base          want.Base
	MasqueradeBit uint8
	NodeProblems  []model.Problem
	Refused       map[model.ServiceID][]model.Problem
	Unreadable    map[model.ObjectRef][]model.Problem
	Compiled      []*compile.Compiled
	Services      []Service
	// Foreign contains the wanted virtual servers that cannot be written because foreign virtual servers have their
	// keys.
	Foreign map[kernel.ServerKey]*want.Server
	History *view.History
}

// Service is a selected Service.
type Service struct {
	*compile.Compiled
	Frontends []Frontend
}

// Frontend is the state of one frontend.
type Frontend struct {
	Port kernel.ServerKey
	// Wanted is the virtual server that new connections should match, or nil if there is none. Foreign is the wanted
	// virtual server that cannot be written because a foreign one has the same key.
	Wanted, Foreign *want.Server
	// AllPorts is the all-ports server that serves the port, or nil if there is none. It differs from Wanted while an
	// earlier virtual server of this port lingers.
	AllPorts *want.Server
	// Observed is the virtual server in the known state. Exists is false if there is none. Read is false if the
	// kernel has never been read.
	Observed     kernel.ObservedServer
	Exists, Read bool
	// Lingers is true if this is an earlier virtual server that keeps its connections. AllPortsLingers is true if an
	// earlier all-ports server keeps connections.
	Lingers, AllPortsLingers bool
	Ramp                     slowstart.Ramp
	Draining                 drain.Clock
}

// View builds the document.
func (s *Snapshot) View() *view.View {
	v := &view.View{
		Time: s.Time, Agent: s.Agent, Sources: []view.Source{}, Services: []view.Service{}, Problems: []string{},
		Totals: s.Totals, History: s.History, Base: view.BaseOf(s.Base, s.MasqueradeBit),
	}
	v.AddNodeProblems(s.NodeProblems)
	v.Node.Addresses, v.Node.LoopbackAddresses = s.Addresses, s.LoopbackAddresses
	v.Agent.Foreign = []view.Foreign{}
	for _, key := range slices.SortedFunc(maps.Keys(s.Foreign), kernel.ServerKey.Compare) {
		v.Agent.Foreign = append(v.Agent.Foreign, view.Foreign{Server: key.String(), Service: s.Foreign[key].Owner.String()})
	}
	for _, object := range slices.SortedFunc(maps.Keys(s.Unreadable), model.ObjectRef.Compare) {
		v.Problems = append(v.Problems, problemTexts(s.Unreadable[object])...)
	}
	slices.SortFunc(s.Compiled, compareServices)
	for _, svc := range s.Compiled {
		v.Problems = append(v.Problems, s.problems(svc)...)
	}
	slices.SortFunc(s.Services, func(a, b Service) int { return compareServices(a.Compiled, b.Compiled) })
	for _, svc := range s.Services {
		v.Services = append(v.Services, s.service(svc))
	}
	return v
}

func compareServices(a, b *compile.Compiled) int { return a.Source().ID.Compare(b.Source().ID) }

func problemTexts(problems []model.Problem) []string {
	texts := []string{}
	for _, p := range problems {
		texts = append(texts, p.String())
	}
	return texts
}

func (s *Snapshot) problems(svc *compile.Compiled) []string {
	return problemTexts(slices.Concat(svc.Problems(), s.Refused[svc.Source().ID]))
}

func (s *Snapshot) service(svc Service) view.Service {
	id := svc.Source().ID
	out := view.Service{Namespace: id.Namespace, Name: id.Name, Frontends: []view.Frontend{}, Problems: s.problems(svc.Compiled)}
	for front, endpoints := range svc.Compiled.Frontends {
		s.complete(&front, endpoints, svc.Frontends[len(out.Frontends)])
		out.Frontends = append(out.Frontends, front)
	}
	return out
}

func (s *Snapshot) complete(front *view.Frontend, endpoints []compile.Endpoint, f Frontend) {
	front.SetEntries, front.Endpoints = []view.SetEntry{}, []view.Endpoint{}
	if f.Wanted != nil && front.State != view.Conflict {
		front.Server, front.Scheduler, front.Affinity = f.Wanted.Server.String(), f.Wanted.Over(f.Observed.Server).Scheduler, f.Wanted.Timeout
		front.AllPorts = f.Wanted.Key != f.Port
		for _, m := range f.members() {
			front.SetEntries = append(front.SetEntries, view.SetEntry{Set: m.Set, Entry: m.Element.String()})
		}
		front.Endpoints = s.endpoints(endpoints, f)
	}
	front.State, front.Reason = f.state(front.State, front.Reason)
}

// state returns the state of the frontend and the reason for it. The arguments are the state and reason that apply
// once the frontend is completely written.
func (f Frontend) state(written view.FrontendState, reason string) (view.FrontendState, string) {
	switch {
	case written == view.Conflict:
		return written, reason
	case f.Foreign != nil:
		return view.ForeignServer, "a foreign virtual server exists there (ipvsadm -D " + f.Foreign.Key.String() + " deletes it)"
	case f.Wanted == nil, !f.Read:
		return view.Missing, "not synced yet"
	case !f.Exists:
		return view.Missing, "not written yet"
	case written == view.NoLocalEndpoints, written == view.InternalOnly:
		return written, reason
	case !slices.ContainsFunc(f.Wanted.Destinations, func(d kernel.Destination) bool { return d.Weight > 0 }):
		return view.NoEndpoints, reason
	case f.Lingers:
		return view.Served, "keeps its own virtual server until its connections end, then uses the all-ports server"
	case f.AllPortsLingers:
		return view.Served, "existing connections through the all-ports server continue at " + f.Port.AllPorts().Addr.String()
	}
	return view.Served, ""
}

func (f Frontend) members() []kernel.Member {
	if f.AllPorts == nil {
		return f.Wanted.Members
	}
	return slices.DeleteFunc(slices.Clone(f.AllPorts.Members), func(m kernel.Member) bool {
		return m.Element.Port != 0 && m.Element.Port != f.Port.Addr.Port()
	})
}
