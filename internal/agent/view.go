package agent

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/snapshot"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Query selects the Services of a View. The zero value selects none.
type Query struct {
	All     bool
	Sample  bool
	Service model.ServiceID
	Address netip.Addr
	History bool
	// Forwarded also asks for what the agent's process forwards, and Connections for each of its connections. The loop knows
	// neither.
	Forwarded, Connections bool
}

// WithoutLoop reports whether the loop knows nothing that the query asks for.
func (q Query) WithoutLoop() bool {
	return q == Query{Forwarded: true, Connections: q.Connections}
}

// View describes the agent's state between two syncs. The loop only takes a snapshot; the caller's goroutine does the
// rest. A snapshot of all Services is taken in parts, so that changes in the cluster do not wait long.
func (a *Agent) View(ctx context.Context, q Query) (*view.View, error) {
	var s *snapshot.Snapshot
	err := a.background.ask(ctx, func() { s = a.snapshot(time.Now(), q) })
	if err != nil {
		return nil, err
	}
	if !q.All {
		return s.View(), nil
	}
	for part := range slices.Chunk(s.Compiled, servicesAtATime) {
		if err := a.background.ask(ctx, func() { s.Services = append(s.Services, a.snapshotServices(part)...) }); err != nil {
			return nil, err
		}
	}
	return s.View(), nil
}

// servicesAtATime is the number of Services that the loop adds to a snapshot between two syncs. That takes less than
// a millisecond.
const servicesAtATime = 500

// The snapshot contains only copies and immutable values. Services are added later.
func (a *Agent) snapshot(now time.Time, q Query) *snapshot.Snapshot {
	p, w := a.planner, a.planner.target
	s := &snapshot.Snapshot{
		Time: now, Agent: a.viewLoop(), Base: *w.Base(), MasqueradeBit: a.cfg.Compile.MasqueradeBit,
		Addresses: p.cluster.Addresses(), LoopbackAddresses: p.cluster.LoopbackAddresses(),
		NodeProblems: a.nodeProblems(), Refused: p.known.Refusals.Problems(), Unreadable: maps.Clone(a.reports.history.unreadable),
		Foreign:  maps.Clone(w.Foreign()),
		Totals:   view.Totals{Services: p.cluster.Services(), VirtualServers: w.Count(), Draining: p.draining.Count()},
		Compiled: make([]*compile.Compiled, 0, p.cluster.Services()),
	}
	if q.History {
		s.History = a.reports.journal.History()
	}
	for _, server := range w.Servers {
		s.Totals.Destinations += len(server.Destinations)
	}
	taken := sample{kinds: map[kindAndFamily]int{}}
	for svc := range p.cluster.AllServices {
		s.Compiled = append(s.Compiled, svc)
		if svc.Source().ID == q.Service || q.Sample && taken.add(svc) || q.Address.IsValid() && svc.HasAddress(q.Address) {
			s.Services = append(s.Services, a.snapshotService(svc))
		}
	}
	return s
}

func (a *Agent) nodeProblems() []model.Problem {
	name := a.cfg.Compile.NodeName
	problems := slices.Concat(a.planner.cluster.NodeProblems(), a.checks.problems(name), a.walks.problems(name))
	if a.reports.held > 0 {
		problems = append(problems, model.Problem{
			Object: model.NodeRef(name), Field: "Services", Value: strconv.Itoa(a.reports.held),
			Reason: "missing from the API server's list although their EndpointSlices exist; served until the next list " +
				"confirms that they were deleted, or for half a minute",
			Remedy: "if you did not delete them, check whether the API server has lost data",
		})
	}
	if have := a.planner.known.State(); have != nil && diff.IPv6Missing(a.planner.target, have) {
		problems = append(problems, model.Problem{
			Object: model.NodeRef(name), Field: "net.ipv6.conf." + kernel.Device + ".disable_ipv6", Value: "1",
			Reason: "IPv6 is disabled on " + kernel.Device + ", so no Service is served at an IPv6 address",
			Remedy: "set this sysctl to 0, and those of the node's other interfaces; net.ipv6.conf.all.disable_ipv6=0 sets all of them. The agent then adds the addresses",
		})
	}
	problems = append(problems, a.planner.unsetSysctls(name)...)
	for _, p := range a.planner.known.Refusals.Problems()[model.ServiceID{}] {
		p.Object, p.Service = model.NodeRef(name), model.ServiceID{}
		problems = append(problems, p)
	}
	return problems
}

// unsetSysctls describes the optional sysctls that the kernel refused and that still have another value.
func (p *planner) unsetSysctls(node string) (problems []model.Problem) {
	for _, s := range p.target.Base().Sysctls {
		err := p.known.Unsettable(s)
		if err == nil || p.known.State() == nil || p.known.State().Sysctls[s.Name] == s.Value {
			continue
		}
		problems = append(problems, model.Problem{
			Object: model.NodeRef(node), Field: s.Dotted(), Value: s.Value,
			Reason: fmt.Sprintf("the agent could not set it; the kernel keeps %s: %v", p.known.State().Sysctls[s.Name], err),
			Remedy: "set it on the host, or " + s.Keep(),
		})
	}
	return problems
}

func (a *Agent) viewLoop() view.Agent {
	h := a.reports.history
	loop := view.Agent{
		Synced: a.reader.source.Synced(), LastSync: h.last, LastFullSync: h.lastFull, Error: h.err, Drift: h.drift, Drifts: h.viewDrifts(), Leftovers: append([]string{}, h.leftovers...),
	}
	if at := a.schedule.RetryAt(); !at.IsZero() {
		loop.RetryAt = &at
	}
	if at := h.lastDrift; !at.IsZero() {
		loop.LastDrift = &at
	}
	return loop
}

func (a *Agent) snapshotServices(some []*compile.Compiled) []snapshot.Service {
	taken := make([]snapshot.Service, 0, len(some))
	for _, svc := range some {
		if now, exists := a.planner.cluster.Service(svc.Source().ID); exists {
			taken = append(taken, a.snapshotService(now))
		}
	}
	return taken
}

func (a *Agent) snapshotService(svc *compile.Compiled) snapshot.Service {
	s := snapshot.Service{Compiled: svc, Frontends: make([]snapshot.Frontend, 0, svc.FrontendCount())}
	for key := range svc.Keys {
		s.Frontends = append(s.Frontends, a.snapshotFrontend(key))
	}
	return s
}

func (a *Agent) snapshotFrontend(port kernel.ServerKey) snapshot.Frontend {
	w := a.planner.target
	key := w.Match(port)
	f := snapshot.Frontend{
		Port: port, Wanted: w.Server(key), Foreign: foreignAt(w, port), Ramp: a.planner.ramps.Of(key), Draining: a.planner.draining.Of(key),
		Lingers: w.Lingers(port), AllPortsLingers: w.Lingers(port.AllPorts()),
	}
	if have := a.planner.known.State(); have != nil {
		f.Read = true
		f.Observed, f.Exists = have.Servers[key]
	}
	if allPorts := w.Server(port.AllPorts()); allPorts != nil && allPorts.Serves(port) {
		f.AllPorts = allPorts
	}
	return f
}

func foreignAt(w *diff.Target, port kernel.ServerKey) *want.Server {
	foreign := w.Foreign()
	if allPorts := foreign[port.AllPorts()]; allPorts != nil && allPorts.Serves(port) {
		return allPorts
	}
	return foreign[port]
}
