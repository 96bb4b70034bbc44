package differential

import (
	"math/rand/v2"
	"slices"
	"time"

	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/kube-ipvs/kube-ipvs/e2e/differential/draw"
)

// event is an event in the life of a node. It does not depend on other events, so that any of them can be removed
// from a history.
type event struct {
	at   time.Duration
	what happening
	seed uint64   // for random details of the event
	set  draw.Set // the objects after the event
}

type happening string

const (
	objectsChange  happening = "objects change"
	rollingUpdate  happening = "one step of a rolling update"
	nodeDrains     happening = "one step of draining another node"
	apiAway        happening = "the API server is unavailable while objects change"
	apiRestored    happening = "the API server is restored from a backup"
	agentKilled    happening = "the agent is killed after some writes"
	agentRestarts  happening = "the agent restarts, and objects have changed in the meantime"
	agentStands    happening = "the agent is stopped for a while (SIGSTOP)"
	nodeReboots    happening = "the node loses all kernel state"
	othersFlush    happening = "another program flushes tables"
	programsHang   happening = "iptables-restore hangs"
	programsFail   happening = "iptables-restore fails"
	clockJumps     happening = "the wall clock jumps"
	tokensRenewed  happening = "the agent's token is renewed"
	nothingHappens happening = "nothing happens for hours"
)

// often contains the relative frequency of each kind. Kinds that restart the agent occur only before restartsEnd, so
// that leaks can grow until the end.
var often = map[happening]int{
	objectsChange: 30, rollingUpdate: 12, nodeDrains: 4, apiAway: 8, apiRestored: 2, agentKilled: 6, agentRestarts: 4, agentStands: 4,
	nodeReboots: 2, othersFlush: 8, programsHang: 3, programsFail: 3, clockJumps: 4, tokensRenewed: 4, nothingHappens: 6,
}

func (h happening) endsAgent() bool {
	return slices.Contains([]happening{agentKilled, agentRestarts, nodeReboots}, h)
}

// history draws random events for a number of days. The same arguments yield the same events.
func history(world draw.World, seed uint64, services int, days float64) (first draw.Set, events []event) {
	rng := rand.New(rand.NewPCG(seed, 7))
	drawer := draw.New(world, seed, 1)
	set := drawer.Batch(services)
	set.NodePorts = nil // this setting requires a restart, so it never changes
	first = set
	end := time.Duration(days * 24 * float64(time.Hour))
	restartsEnd := end * 3 / 4
	add := func(at time.Duration, what happening, next draw.Set) {
		next.NodePorts = nil
		share(next, set)
		events = append(events, event{at, what, rng.Uint64(), next})
		set = next
	}
	for at := pause(rng); at < end; at += pause(rng) {
		switch what := drawKind(rng, at < restartsEnd); what {
		case rollingUpdate, nodeDrains:
			steps := rolled(set, rng.IntN(len(set.Services)))
			if what == nodeDrains {
				steps = drained(set, world.Nodes[1].Name)
			}
			for _, next := range steps {
				at += time.Duration(5+rng.IntN(30)) * time.Second
				add(at, what, next)
			}
		case objectsChange, apiAway, apiRestored, agentRestarts, agentStands, programsHang, programsFail:
			next, _ := drawer.Change(set)
			add(at, what, next)
		default:
			add(at, what, set)
		}
	}
	return first, events
}

// share saves memory by reusing equal objects from an earlier set. A history contains hundreds of sets.
func share(set, earlier draw.Set) {
	had := map[string]draw.Service{}
	for _, svc := range earlier.Services {
		had[svc.ID()] = svc
	}
	for i := range set.Services {
		if old, ok := had[set.Services[i].ID()]; ok && equality.Semantic.DeepEqual(old, set.Services[i]) {
			set.Services[i] = old
		}
	}
}

// pause returns the time until the next event: often minutes, sometimes hours.
func pause(rng *rand.Rand) time.Duration {
	return time.Duration((1 + rng.ExpFloat64()*40) * float64(time.Minute))
}

func drawKind(rng *rand.Rand, restarts bool) happening {
	var urn []happening
	for what, n := range often {
		if restarts || !what.endsAgent() {
			urn = append(urn, slices.Repeat([]happening{what}, n)...)
		}
	}
	slices.Sort(urn)
	return urn[rng.IntN(len(urn))]
}

// rolled replaces the endpoints of a Service one by one. Each endpoint terminates in one step and disappears in the
// next.
func rolled(before draw.Set, service int) (steps []draw.Set) {
	for i := range 4 {
		next := before.Clone()
		for _, slice := range next.Services[service].Slices {
			if i < len(slice.Endpoints) {
				terminate(&slice.Endpoints[i])
			}
		}
		gone := next.Clone()
		for _, slice := range gone.Services[service].Slices {
			if i < len(slice.Endpoints) {
				slice.Endpoints = slices.Delete(slice.Endpoints, i, i+1)
			}
		}
		steps = append(steps, next, gone)
	}
	return append(steps, before)
}

// drained drains a node: its endpoints terminate, disappear, and return.
func drained(before draw.Set, node string) []draw.Set {
	leaving, gone := before.Clone(), before.Clone()
	here := func(e discovery.Endpoint) bool { return e.NodeName != nil && *e.NodeName == node }
	for i := range leaving.Services {
		for j, slice := range leaving.Services[i].Slices {
			for k := range slice.Endpoints {
				if here(slice.Endpoints[k]) {
					terminate(&slice.Endpoints[k])
				}
			}
			other := gone.Services[i].Slices[j]
			other.Endpoints = slices.DeleteFunc(other.Endpoints, here)
		}
	}
	return []draw.Set{leaving, gone, before}
}

func terminate(e *discovery.Endpoint) {
	no, yes := false, true
	e.Conditions = discovery.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}
}
