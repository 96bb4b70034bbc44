package agent

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Ask says of which Services a View is to tell. The zero value asks for none.
type Ask struct {
	All bool
	// Service is one by name, Address those that have a front there; each may be left out.
	Service model.ServiceID
	Address netip.Addr
}

// query is an Ask on its way to the loop.
type query struct {
	ask    Ask
	answer chan<- *view.View
}

// View asks the running loop, which answers between two passes. It costs nothing as long as nobody asks.
func (a *Agent) View(ctx context.Context, ask Ask) (*view.View, error) {
	answer := make(chan *view.View, 1) // the loop does not wait for us
	select {
	case a.queries <- query{ask, answer}:
		return <-answer, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("the loop is busy with a pass, or has ended: %w", ctx.Err())
	}
}

// view describes the loop as it is. Everything in it is new, or immutable.
func (a *Agent) view(now time.Time, ask Ask) *view.View {
	v := &view.View{
		Time: now, Agent: a.viewLoop(), Sources: []view.Source{}, Services: []view.Service{}, Problems: []string{},
		Base: view.BaseOf(a.cluster.Want().Base, a.cfg.Compile.MasqueradeBit),
	}
	v.Node.Addresses = a.cluster.Addresses()
	v.Totals = a.totals()
	v.Problems = append(v.Problems, problemTexts(a.cluster.NodeProblems())...)
	for _, object := range sortedKeys(a.history.unreadable) {
		v.Problems = append(v.Problems, problemTexts(a.history.unreadable[object])...)
	}
	for _, id := range a.cluster.IDs() {
		v.Problems = append(v.Problems, problemTexts(a.cluster.Problems(id))...)
		if ask.All || id == ask.Service || ask.Address.IsValid() && a.cluster.HasAddress(id, ask.Address) {
			v.Services = append(v.Services, a.viewService(now, a.cluster.Describe(id)))
		}
	}
	return v
}

func problemTexts(problems []model.Problem) []string {
	texts := []string{}
	for _, p := range problems {
		texts = append(texts, p.String())
	}
	return texts
}

func (a *Agent) viewLoop() view.Agent {
	loop := view.Agent{
		Synced: a.source.Synced(), LastPass: a.history.last, LastFullPass: a.history.lastFull, Error: a.history.err,
		Drift: a.history.drift, Foreign: []view.Foreign{}, Leftovers: append([]string{}, a.history.leftovers...),
	}
	if !a.schedule.RetryAt().IsZero() {
		at := a.schedule.RetryAt()
		loop.Retry = &at
	}
	if at := a.history.lastDrift; !at.IsZero() {
		loop.LastDrift = &at
	}
	foreign := a.cluster.Want().Foreign()
	for _, key := range slices.SortedFunc(maps.Keys(foreign), kernel.ServerKey.Compare) {
		loop.Foreign = append(loop.Foreign, view.Foreign{Server: key.String(), Service: foreign[key].Owner})
	}
	return loop
}

func (a *Agent) totals() view.Totals {
	t := view.Totals{Services: a.cluster.Services(), Draining: a.draining.Count()}
	for _, server := range a.cluster.Want().Servers {
		t.VirtualServers++
		t.Destinations += len(server.Destinations)
	}
	return t
}

func (a *Agent) viewService(now time.Time, d compile.Description) view.Service {
	s := view.Service{
		Namespace: d.Service.ID.Namespace, Name: d.Service.ID.Name, Fronts: []view.Front{}, Problems: problemTexts(d.Problems),
	}
	for _, f := range d.Fronts {
		s.Fronts = append(s.Fronts, a.viewFront(now, d.Service, f))
	}
	return s
}

func (a *Agent) viewFront(now time.Time, svc *model.Service, f compile.FrontDescription) view.Front {
	front := view.Front{
		Port: f.Port.Name, Kind: view.Kind(f.Kind), Address: f.Key.Addr, Protocol: f.Key.Protocol.String(), Bound: f.Bound,
		Policy: "Cluster", Settings: []view.Setting{}, SetEntries: []view.SetEntry{}, Endpoints: []view.Endpoint{},
	}
	if f.Local {
		front.Policy = "Local"
	}
	if front.Kind == view.LoadBalancer {
		front.SourceRanges = sourceRanges(svc, f.Key)
	}
	for _, s := range f.Settings {
		front.Settings = append(front.Settings, view.Setting(s))
	}
	key := a.cluster.Want().ServerOf(f.Key)
	wanted := a.cluster.Want().Servers[key]
	if wanted != nil && f.Winner == svc.ID {
		front.Server, front.Scheduler, front.Affinity, front.AllPorts = wanted.Server.String(), wanted.Scheduler, wanted.Timeout, key != f.Key
		for _, m := range a.membersOf(f.Key) {
			front.SetEntries = append(front.SetEntries, view.SetEntry{Set: m.Set, Entry: m.Element.String()})
		}
		front.Endpoints = a.viewEndpoints(now, wanted, f)
	}
	front.State, front.Reason = a.frontState(svc, f, wanted)
	return front
}

// sourceRanges are those of the front's family.
func sourceRanges(svc *model.Service, key kernel.ServerKey) []netip.Prefix {
	var ranges []netip.Prefix
	for _, r := range svc.SourceRanges {
		if r.Addr().Is4() == key.Addr.Addr().Is4() {
			ranges = append(ranges, r)
		}
	}
	return ranges
}

func (a *Agent) frontState(svc *model.Service, f compile.FrontDescription, wanted *want.Server) (view.FrontState, string) {
	switch {
	case f.Winner != svc.ID:
		return view.Claimed, "Service " + f.Winner.String() + " has the better claim to the same address, port and protocol"
	case a.foreignAt(f.Key) != nil:
		return view.Taken, "a virtual server that is not ours stands there (ipvsadm -D " + a.foreignAt(f.Key).Key.String() + " removes it)"
	case wanted == nil, a.known.State() == nil:
		return view.Missing, "no pass has come to it yet"
	case !a.stands(wanted.Key):
		return view.Missing, "it could not be written yet"
	case f.Guard == compile.GuardAll:
		return view.NoLocal, "the internal traffic policy is Local, and no endpoint is on this node"
	case f.Guard == compile.GuardOutside:
		return view.InsideOnly, "the external traffic policy is Local, and no endpoint is on this node"
	case !slices.ContainsFunc(wanted.Destinations, func(d kernel.Destination) bool { return d.Weight > 0 }):
		return view.NoEndpoints, ""
	}
	return view.Served, a.lingering(f.Key)
}

// foreignAt is the virtual server that a port is to have, where somebody else's stands in its place.
func (a *Agent) foreignAt(port kernel.ServerKey) *want.Server {
	foreign := a.cluster.Want().Foreign()
	if wide := foreign[port.AllPorts()]; wide != nil && wide.Serves(port) {
		return wide
	}
	return foreign[port]
}

// lingering says what of an earlier affinity still stands at a port.
func (a *Agent) lingering(port kernel.ServerKey) string {
	switch w := a.cluster.Want(); {
	case w.Lingers(port):
		return "joins the affinity of all ports when the connections have ended that it had before"
	case w.Lingers(port.AllPorts()):
		return "connections from the time of one affinity for all ports go on at " + port.AllPorts().Addr.String()
	}
	return ""
}

// membersOf are the entries of sets that exist for a port.
func (a *Agent) membersOf(port kernel.ServerKey) []kernel.Member {
	w := a.cluster.Want()
	wide := w.Servers[port.AllPorts()]
	if wide == nil || !wide.Serves(port) {
		return w.Servers[port].Members
	}
	return slices.DeleteFunc(slices.Clone(wide.Members), func(m kernel.Member) bool {
		return m.Element.Port != 0 && m.Element.Port != port.Addr.Port()
	})
}

// stands says whether the virtual server is in the kernel, as far as we know.
func (a *Agent) stands(key kernel.ServerKey) bool {
	_, stands := a.known.State().Servers[key]
	return stands
}
