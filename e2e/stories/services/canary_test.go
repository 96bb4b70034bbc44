package services

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// TestCanary runs this version of the agent on node-1 and the previous version on node-2 (the canary is the node that
// differs). Both serve the same Services while endpoints change. Then each node gets the other version, and its own
// again. The names and records in the kernel are the same with both versions, and no connection is lost.
//
// On a virtual clock without a time limit (make week), two days pass.
func TestCanary(t *testing.T) {
	labtest.Need(t)
	cluster.NeedKernel(t, "nothing outlives the process")
	s := onStage(t)
	c := newCanary(t, s)
	s.restartAgent(t, s.node3, rarely...)
	for node, previous := range c.previous {
		c.runs(t, node, previous)
		t.Cleanup(func() { c.replace(t, node, s.agentCommand(t, node)) })
	}
	flows := c.openFlows(t)
	began := time.Now()
	for range 6 {
		c.change(t, c.more)
		c.sameOnBothNodes(t)
		time.Sleep(c.pause)
		c.change(t, c.fewer)
		time.Sleep(c.pause)
	}
	mixed := time.Since(began).Hours()
	c.change(t, c.more)
	rounds, asking := cluster.Size(1, 10), c.keepAsking(t)
	for range rounds {
		for node, previous := range c.previous {
			c.changesVersion(t, node, previous)
			hold(t, asking)
		}
	}
	asked := 0
	for _, a := range asking {
		a.mustNeverFail(t)
		asked += a.count()
	}
	connections, requests := 0, 0
	for _, f := range flows {
		f.AwaitRound(t, c.every+patience)
		report := f.MustBeUnharmed(t)
		connections, requests = connections+report.Flows, requests+report.Sent
	}
	t.Attr("figure", fmt.Sprintf("%.1f hours with two versions, then %d upgrades and %d downgrades: %d connections with %d requests, and %d new connections, none lost",
		mixed, len(c.previous)*rounds, len(c.previous)*rounds, connections, requests, asked))
}

type canary struct {
	*stage
	previous    map[*cluster.Node]bool         // whether a node runs the previous version
	pods        map[*cluster.Node]*cluster.Pod // clients
	fewer, more []service                      // with two and three endpoints
	pause       time.Duration                  // after each change
	every       time.Duration                  // between the requests of a connection
}

func newCanary(t *testing.T, s *stage) *canary {
	t.Helper()
	c := &canary{
		stage: s, every: time.Second,
		previous: map[*cluster.Node]bool{s.node1: false, s.node2: true},
		pods:     map[*cluster.Node]*cluster.Pod{s.node1: s.client, s.node2: s.node2.Pod(t, "canary-client")},
	}
	version := []string{cluster.AgentBinary(t), "version"}
	if this, previous := s.node2.MustRun(t, version...), s.node2.MustRun(t, cluster.Previous(version...)...); this == previous {
		t.Fatalf("both nodes would run %s", this)
	}
	virtual, err := cluster.VirtualClock()
	if err != nil {
		t.Fatal(err)
	}
	if _, limited := t.Deadline(); virtual && !limited {
		c.pause, c.every = 4*time.Hour, 5*time.Minute
	}
	third := s.node3.Pod(t, "web-3")
	third.Serve(t, cluster.TCP, http.Target)
	t.Cleanup(func() {
		for _, pod := range []*cluster.Pod{third, c.pods[s.node2]} {
			_ = pod.Delete()
		}
	})
	for _, yaml := range []string{`
metadata: {name: canary}
spec: {type: NodePort, ports: [{name: http, port: 80, targetPort: 8080}]}`, `
metadata: {name: canary-lb, annotations: {kube-ipvs.io/scheduler: wlc}}
spec: {type: LoadBalancer, sessionAffinity: ClientIP, ports: [{name: http, port: 80, targetPort: 8080}]}`} {
		fewer := s.service(t, yaml+"\n---\nendpoints: [{addresses: [web-1]}, {addresses: [web-2]}]")
		c.fewer = append(c.fewer, fewer)
		c.more = append(c.more, fewer.With("endpoints: [{addresses: [web-1]}, {addresses: [web-2]}, {addresses: [web-3]}]"))
	}
	return c
}

// rarely makes days take less real time.
var rarely = []string{"--ipvs-sync-period", "1h", "--ipvs-check-period", "0"}

// runs starts a version of the agent on a node.
func (c *canary) runs(t *testing.T, node *cluster.Node, previous bool) {
	t.Helper()
	command := c.agentCommand(t, node, rarely...)
	if previous {
		command = cluster.Previous(command...)
	}
	c.replace(t, node, command)
}

func (c *canary) replace(t *testing.T, node *cluster.Node, command []string) {
	t.Helper()
	if err := c.agents[node].Stop(patience); err != nil {
		t.Errorf("stop the agent on %s: %v", node.Name, err)
	}
	c.agents[node] = node.MustStart(t, command...)
	c.agents[node].AwaitLog(t, patience, "initial sync complete")
}

// openFlows opens connections through each node to each kind of frontend.
func (c *canary) openFlows(t *testing.T) (all []*cluster.Flows) {
	t.Helper()
	config := cluster.FlowConfig{Every: c.every, Within: patience, Max: 10 * 24 * time.Hour}
	for node, pod := range c.pods {
		for _, f := range c.FamilyList() {
			for _, svc := range c.fewer {
				all = append(all, pod.OpenFlows(t, 1, cluster.TCP, svc.At(f, http), config), c.outside.OpenFlows(t, 1, cluster.TCP, svc.AtNode(node, f), config))
			}
			all = append(all, pod.OpenFlows(t, 1, cluster.TCP, c.fewer[1].AtBalancer(f, http), config))
		}
	}
	return all
}

// keepAsking opens new connections through each node. Its clients do nothing else, because IPVS can mistake a
// connection for an older one from the same port to the same endpoint (docs/known-limits.md).
func (c *canary) keepAsking(t *testing.T) (all []*requests) {
	t.Helper()
	for node := range c.pods {
		pod := node.Pod(t, "asks-"+node.Name)
		t.Cleanup(func() { _ = pod.Delete() })
		all = append(all, keepRequesting(t, pod.Host, http, c.more[0].At(cluster.V4, http)))
	}
	return append(all, keepRequesting(t, c.otherOutside, http, c.more[0].AtNode(c.node1, cluster.V4)))
}

// change applies the Services and sends requests through both nodes.
func (c *canary) change(t *testing.T, services []service) {
	t.Helper()
	for _, svc := range services {
		c.stage.change(t, svc)
	}
	for node := range c.pods {
		c.answers(t, node)
	}
}

// answers sends requests through a node, and lists the endpoints that clients with affinity reached.
func (c *canary) answers(t *testing.T, node *cluster.Node) string {
	t.Helper()
	var held []string
	for _, f := range c.FamilyList() {
		for from, at := range map[*cluster.Host][]string{
			c.pods[node].Host: {c.fewer[0].At(f, http), c.fewer[1].At(f, http), c.fewer[1].AtBalancer(f, http)},
			c.outside:         {c.fewer[0].AtNode(node, f), c.fewer[1].AtNode(node, f)},
		} {
			for i, addr := range at {
				first := from.Await(t, patience, cluster.TCP, addr).Server
				second := from.Get(t, cluster.TCP, addr, slowly).Server
				if sticks := i > 0; !sticks {
					continue
				} else if first != second {
					t.Errorf("%s reached %s and then %s at %s, which has affinity", from.Name, first, second, addr)
				}
				held = append(held, fmt.Sprintf("%s reached %s at %s", from.Name, second, addr))
			}
		}
	}
	return sorted(strings.Join(held, "\n"))
}

// sameOnBothNodes compares the records and names on the nodes, without the nodes' own addresses.
func (c *canary) sameOnBothNodes(t *testing.T) {
	t.Helper()
	var states []string
	for _, node := range []*cluster.Node{c.node1, c.node2} {
		v6 := node.V6.String()
		own := strings.NewReplacer(node.V4.String(), "NODE", v6, "NODE", strings.ReplaceAll(v6, ":", "-"), "NODE") // nftables' names contain no colon
		state := own.Replace(recordsAndNames(t, node))
		states = append(states, sorted(state))
	}
	mustEqual(t, "the records and names on node-1 and node-2 (the previous version)", states[0], states[1])
}

// changesVersion gives a node the other version and its own again.
func (c *canary) changesVersion(t *testing.T, node *cluster.Node, previous bool) {
	t.Helper()
	records, state, held := recordsAndNames(t, node), kernelState(t, node), c.answers(t, node)
	for _, version := range []bool{!previous, previous} {
		c.runs(t, node, version)
		what := fmt.Sprintf("%s, previous version %t: ", node.Name, version)
		mustEqual(t, what+"the records and names", records, recordsAndNames(t, node))
		mustEqual(t, what+"the endpoints of clients with affinity", held, c.answers(t, node))
	}
	if !cluster.Balancing() { // this version leaves the maps of another one in place until they change
		mustEqual(t, node.Name+" has its own version again: the kernel state", state, kernelState(t, node))
	}
}

func mustEqual(t *testing.T, what, want, got string) {
	t.Helper()
	if want != got {
		t.Errorf("%s: (- want, + got):\n%s", what, cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")))
	}
}

var ofRecordOrName = regexp.MustCompile(`^(create |add KIPVS-[46]-LEDGER |:|\s*(table|chain|set|map) |.* kube-ipvs0 )`)

// ofBalancing matches the names of maps and chains that releases may change.
var ofBalancing = regexp.MustCompile(`^\s*(chain|map) [a-z-]+[46]\b`)

// recordsAndNames returns the virtual servers, addresses and owner records, and the names of sets and chains. Releases
// may write other rules, and other entries of other sets.
func recordsAndNames(t *testing.T, node *cluster.Node) string {
	t.Helper()
	servers, err := node.VirtualServers()
	if err != nil {
		t.Fatal(err)
	}
	var kept []string
	for key, server := range servers {
		kept = append(kept, fmt.Sprintf("%s %+v", key, server))
	}
	for _, line := range strings.Split(kernelState(t, node), "\n") {
		if ofRecordOrName.MatchString(line) && !ofBalancing.MatchString(line) {
			kept = append(kept, line)
		}
	}
	return sorted(strings.Join(kept, "\n"))
}
