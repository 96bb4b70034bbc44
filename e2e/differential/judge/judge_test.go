package judge

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/differential/draw"
	"github.com/kube-ipvs/kube-ipvs/internal/goldentest"
)

const document = "../../../docs/differences.md"

func TestDocument(t *testing.T) { goldentest.Compare(t, document, Document()) }

func TestParseState(t *testing.T) {
	s, err := ParseState(`-A -t 10.96.0.1:443 -s rr
-A -u [fd00:10:96::a]:53 -s rr -p 10800 -M 128
-a -u [fd00:10:96::a]:53 -r [fd00:10:244::2]:53 -m -w 1
-a -u [fd00:10:96::a]:53 -r [fd00:10:244::3]:53 -m -w 0
-A --sctp-service 10.96.0.9:9 -s rr
`, `7: kube-ipvs0    inet 10.96.0.1/32 scope global kube-ipvs0\       valid_lft forever preferred_lft forever
7: kube-ipvs0    inet6 fd00:10:96::a/128 scope global deprecated \       valid_lft forever preferred_lft 0sec
`)
	if err != nil {
		t.Fatal(err)
	}
	dns := s.Servers[Key{"UDP", netip.MustParseAddrPort("[fd00:10:96::a]:53")}]
	if got, want := dns.String(), "-s rr -p 10800 -M 128 [fd00:10:244::2]:53(1) [fd00:10:244::3]:53(0)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if len(dns.Serving()) != 1 || len(s.Servers) != 3 || len(s.Bound) != 2 || !s.Bound[netip.MustParseAddr("fd00:10:96::a")] {
		t.Errorf("got %+v", s)
	}
	for _, bad := range []string{"-A -t", "-E -t 10.0.0.1:1 -s rr", "-A -f 7 -s rr", "-a -t 10.0.0.1:1 -r 10.0.0.2:1 -g -w 1"} {
		if _, err := ParseState(bad, ""); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

// situation returns a case with a small world.
func situation(t *testing.T, manifests string) *Case {
	t.Helper()
	set, err := draw.Parse([]byte(`apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {addresses: [{type: InternalIP, address: 192.168.50.11}]}
---
apiVersion: v1
kind: Node
metadata: {name: node-2}
status: {addresses: [{type: InternalIP, address: 192.168.50.12}]}
---
` + manifests))
	if err != nil {
		t.Fatal(err)
	}
	return NewCase(draw.World{Nodes: set.Nodes, Interfaces: set.Nodes[0].Internal, Clients: []draw.Client{
		{Name: Host, Place: draw.OnNode, Addrs: set.Nodes[0].Internal},
		{Name: "client-1", Place: draw.Outside},
	}}, set, nil)
}

const service = `apiVersion: v1
kind: Service
metadata: {name: NAME, namespace: default}
spec: {type: NodePort, clusterIP: CLUSTERIP, clusterIPs: [CLUSTERIP], externalIPs: [EXTERNAL], internalTrafficPolicy: INTERNAL,
  externalTrafficPolicy: Cluster, ports: [{name: p, port: 80, protocol: TCP, nodePort: 30080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: NAME-1, namespace: default, labels: {kubernetes.io/service-name: NAME}}
addressType: IPv4
ports: [{name: p, port: 8080, protocol: TCP}]
endpoints: [{addresses: [ENDPOINT], nodeName: node-2}]
---
`

func manifest(name, clusterIP, external, internal, endpoint string) string {
	return strings.NewReplacer("NAME", name, "CLUSTERIP", clusterIP, "EXTERNAL", external, "INTERNAL", internal, "ENDPOINT", endpoint).Replace(service)
}

func state(t *testing.T, table, addresses string) State {
	t.Helper()
	s, err := ParseState(table, addresses)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func judged(t *testing.T, c *Case, theirs, ours State) (bugs []Bug, tally *Tally) {
	t.Helper()
	tally = NewTally()
	return c.Judge(Items(theirs, ours), tally), tally
}

const webTable = "-A -t 10.96.0.5:80 -s rr\n-a -t 10.96.0.5:80 -r 10.244.2.2:8080 -m -w 1\n"

func TestUnexplainedDifferencesAreBugs(t *testing.T) {
	c := situation(t, manifest("web", "10.96.0.5", "198.18.7.1", "Cluster", "10.244.2.2"))
	theirs := state(t, webTable, "1: x inet 10.96.0.5/32 x\n")
	for name, ours := range map[string]State{
		"a server is missing":          state(t, "", "1: x inet 10.96.0.5/32 x\n"),
		"an extra server":              state(t, webTable+"-A -t 10.96.0.6:80 -s rr\n", "1: x inet 10.96.0.5/32 x\n"),
		"another scheduler":            state(t, strings.ReplaceAll(webTable, "-s rr", "-s wrr"), "1: x inet 10.96.0.5/32 x\n"),
		"a destination is missing":     state(t, "-A -t 10.96.0.5:80 -s rr\n", "1: x inet 10.96.0.5/32 x\n"),
		"another destination":          state(t, strings.ReplaceAll(webTable, "10.244.2.2", "10.244.2.3"), "1: x inet 10.96.0.5/32 x\n"),
		"the destination has weight 0": state(t, strings.ReplaceAll(webTable, "-w 1", "-w 0"), "1: x inet 10.96.0.5/32 x\n"),
		"the address is not bound":     state(t, webTable, ""),
		"an extra address":             state(t, webTable, "1: x inet 10.96.0.5/32 x\n1: x inet 10.96.0.6/32 x\n"),
	} {
		if bugs, _ := judged(t, c, theirs, ours); len(bugs) != 1 || bugs[0].Rule != "" {
			t.Errorf("%s: %v", name, bugs)
		}
	}
	if bugs, _ := judged(t, c, theirs, theirs); len(bugs) != 0 {
		t.Errorf("bugs without a difference: %v", bugs)
	}
}

func TestAnExplainedDifferenceIsNoBug(t *testing.T) {
	c := situation(t, manifest("web", "10.96.0.5", "192.168.50.12", "Local", "10.244.2.2"))
	hijack := strings.ReplaceAll(webTable, "10.96.0.5", "192.168.50.12")
	theirs := state(t, webTable+hijack, "1: x inet 10.96.0.5/32 x\n1: x inet 192.168.50.12/32 x\n")
	ours := state(t, "-A -t 10.96.0.5:80 -s rr\n", "1: x inet 10.96.0.5/32 x\n")
	bugs, tally := judged(t, c, theirs, ours)
	if len(bugs) != 0 {
		t.Errorf("%v", bugs)
	}
	if n := tally.Rules["node-address"]; n.Matched != 2 || n.Held != 2 {
		t.Errorf("node-address: %+v", n)
	}
	if n := tally.Rules["internal-local-none"]; n.Matched != 1 {
		t.Errorf("internal-local-none: %+v", n)
	}
}

func TestARuleThatPromisesTooMuchIsABug(t *testing.T) {
	c := situation(t, manifest("web", "192.168.50.11", "203.0.113.200", "Cluster", "10.244.2.2"))
	hijack := state(t, strings.ReplaceAll(webTable, "10.96.0.5", "192.168.50.11"), "")
	bugs, _ := judged(t, c, hijack, hijack)
	if len(bugs) != 1 || !strings.Contains(bugs[0].Rule, "own-address-as-cluster-ip") {
		t.Errorf("wrong verdict if both programs serve this node's address: %v", bugs)
	}
	c = situation(t, manifest("web", "10.96.0.5", "192.168.50.12", "Cluster", "10.244.2.2"))
	hijack = state(t, webTable+strings.ReplaceAll(webTable, "10.96.0.5", "192.168.50.12"), "")
	if bugs, _ := judged(t, c, state(t, webTable, ""), hijack); len(bugs) != 1 || !strings.Contains(bugs[0].Rule, "node-address") {
		t.Errorf("wrong verdict if only kube-ipvs serves another node's address: %v", bugs)
	}
}

func TestTheOldestClaimWins(t *testing.T) {
	api := strings.ReplaceAll(manifest("api", "10.96.0.6", "203.0.113.200", "Cluster", "10.244.2.3"), "30080", "30081")
	c := situation(t, manifest("web", "10.96.0.5", "203.0.113.200", "Cluster", "10.244.2.2")+api)
	table := strings.ReplaceAll(webTable, "10.96.0.5", "203.0.113.200")
	contested := func(to string) State { return state(t, strings.ReplaceAll(table, "10.244.2.2", to), "") }
	// kube-proxy may serve web, or keep an endpoint of a deleted Service. kube-ipvs must serve api, the first by name.
	for served, wrong := range map[[2]string]int{{"10.244.2.2", "10.244.2.3"}: 0, {"10.244.2.9", "10.244.2.3"}: 0, {"10.244.2.3", "10.244.2.2"}: 1} {
		if bugs, tally := judged(t, c, contested(served[0]), contested(served[1])); len(bugs) != wrong || tally.Rules["contested"].Matched != 1-wrong {
			t.Errorf("%v: %v", served, bugs)
		}
	}
}

func TestConnections(t *testing.T) {
	c := situation(t, strings.ReplaceAll(manifest("web", "10.96.0.5", "198.18.7.1", "Cluster", "10.244.2.2"), "port: 80,", "port: 30080,"))
	item := func(key, client string, theirs, ours Reach) Item {
		return Item{Kind: Connection, Key: Key{"TCP", netip.MustParseAddrPort(key)}, Client: client,
			KubeProxy: Value{Reach: theirs}, Ours: Value{Reach: ours}}
	}
	saw := func(whom string) Reach { return Reach{Outcome: Answered, Seen: map[string]string{"web-4": whom}} }
	for _, try := range []struct {
		name string
		item Item
		bugs int
	}{
		{"a port like a node port", item("10.96.0.5:30080", "client", saw(AsNode), saw(Itself)), 0},
		{"the sources are swapped", item("10.96.0.5:30080", "client", saw(Itself), saw(AsNode)), 1},
		{"another address", item("198.18.7.1:30080", "client", saw(AsNode), saw(Itself)), 1},
		{"kube-ipvs does not answer", item("198.18.7.1:30080", "client", saw(AsNode), Reach{Outcome: "timed out"}), 1},
		{"the same", item("198.18.7.1:30080", "client", saw(AsNode), saw(AsNode)), 0},
	} {
		if bugs := c.Judge([]Item{try.item}, NewTally()); len(bugs) != try.bugs {
			t.Errorf("%s: %v", try.name, bugs)
		}
	}
}

func TestOwnAddressAsClusterIP(t *testing.T) {
	c := situation(t, manifest("web", "192.168.50.11", "198.18.7.1", "Cluster", "10.244.2.2"))
	theirs := state(t, strings.ReplaceAll(webTable, "10.96.0.5", "192.168.50.11"), "1: x inet 192.168.50.11/32 x\n")
	if bugs, tally := judged(t, c, theirs, state(t, "", "")); len(bugs) != 0 || tally.Rules["own-address-as-cluster-ip"].Matched != 2 {
		t.Errorf("%v, %v", bugs, tally)
	}
	if bugs, _ := judged(t, c, theirs, theirs); len(bugs) != 2 {
		t.Errorf("wrong verdict if kube-ipvs also closes the node's own ports: %v", bugs)
	}
}

func TestUnfitEndpoint(t *testing.T) {
	text := strings.ReplaceAll(manifest("web", "10.96.0.5", "198.18.7.1", "Cluster", "10.244.2.2"),
		"endpoints: [{", `endpoints: [{addresses: ["239.1.1.1"], nodeName: node-2}, {conditions: {ready: false, serving: true, terminating: true}, `)
	c := situation(t, text)
	none := state(t, "-A -t 10.96.0.5:80 -s rr\n", "")
	if bugs, _ := judged(t, c, none, state(t, webTable, "")); len(bugs) != 0 {
		t.Errorf("wrong verdict if kube-proxy has no destination: %v", bugs)
	}
	if bugs, _ := judged(t, c, state(t, webTable, ""), none); len(bugs) != 1 {
		t.Errorf("wrong verdict if kube-ipvs has no destination: %v", bugs)
	}
	if bugs, _ := judged(t, c, none, state(t, strings.ReplaceAll(webTable, "10.244.2.2", "10.244.2.3"), "")); len(bugs) != 1 {
		t.Errorf("wrong verdict if kube-ipvs has unexpected destinations: %v", bugs)
	}
}

func TestLocalPolicies(t *testing.T) {
	text := strings.ReplaceAll(manifest("web", "10.96.0.5", "203.0.113.7", "Local", "10.244.2.2"), "externalTrafficPolicy: Cluster", "externalTrafficPolicy: Local")
	c := situation(t, text)
	none := state(t, "-A -t 10.96.0.5:80 -s rr\n", "")
	if bugs, tally := judged(t, c, state(t, webTable, ""), none); len(bugs) != 0 || tally.Rules["internal-local-none"].Matched != 1 {
		t.Errorf("wrong verdict if the ClusterIP has no destination: %v", bugs)
	}
	for name, theirs := range map[string]State{
		"to another endpoint": state(t, strings.ReplaceAll(webTable, "10.244.2.2", "10.244.2.9"), ""),
		"also nowhere":        none,
	} {
		if bugs, _ := judged(t, c, theirs, none); len(bugs) != 1 {
			t.Errorf("wrong verdict if kube-proxy's ClusterIP leads %s: %v", name, bugs)
		}
	}
	if bugs, _ := judged(t, c, state(t, webTable, ""), state(t, webTable, "")); len(bugs) != 1 {
		t.Errorf("wrong verdict if kube-ipvs's ClusterIP leads to another node: %v", bugs)
	}
	saw := func(whom string) Reach { return Reach{Outcome: Answered, Seen: map[string]string{"web-4": whom}} }
	lost, refused := Reach{Outcome: TimedOut}, Reach{Outcome: "refused"}
	for _, try := range []struct {
		name, client, at string
		theirs, ours     Reach
		bugs             int
	}{
		{"a pod, to the ClusterIP", "client", "10.96.0.5:80", saw(Itself), lost, 0},
		{"the same, and kube-ipvs refuses", "client", "10.96.0.5:80", saw(Itself), refused, 1},
		{"the same, and kube-ipvs answers", "client", "10.96.0.5:80", refused, saw(Itself), 1},
		{"the node, to the ClusterIP", Host, "10.96.0.5:80", saw(AsNode), refused, 0},
		{"the node, to an external address", Host, "203.0.113.7:80", lost, saw(AsNode), 0},
		{"the same, and kube-ipvs shows the address", Host, "203.0.113.7:80", lost, saw(AsVirtual), 1},
		{"the same, and kube-proxy refuses", Host, "203.0.113.7:80", refused, saw(AsNode), 1},
		{"a client outside, to an external address", "client-1", "203.0.113.7:80", saw(Itself), lost, 1},
	} {
		item := Item{Kind: Connection, Key: Key{"TCP", netip.MustParseAddrPort(try.at)}, Client: try.client,
			KubeProxy: Value{Reach: try.theirs}, Ours: Value{Reach: try.ours}}
		if bugs := c.Judge([]Item{item}, NewTally()); len(bugs) != try.bugs {
			t.Errorf("%s: %v", try.name, bugs)
		}
	}
}

func TestNodePortAtAClusterIP(t *testing.T) {
	c := situation(t, manifest("web", "192.168.50.11", "198.18.7.1", "Cluster", "10.244.2.2"))
	saw := func(whom string) Reach { return Reach{Outcome: Answered, Seen: map[string]string{"web-4": whom}} }
	refused := Reach{Outcome: "refused"}
	for _, try := range []struct {
		name, client string
		theirs, ours Reach
		bugs         int
	}{
		{"a pod", "client", refused, saw(AsNode), 0},
		{"kube-ipvs also refuses", "client", refused, refused, 0},
		{"only kube-ipvs refuses", "client", saw(AsNode), refused, 1},
		{"the node itself", Host, saw(AsVirtual), saw(AsNode), 0},
		{"the node itself, refused", Host, saw(AsVirtual), refused, 1},
	} {
		item := Item{Kind: Connection, Key: Key{"TCP", netip.MustParseAddrPort("192.168.50.11:30080")}, Client: try.client,
			KubeProxy: Value{Reach: try.theirs}, Ours: Value{Reach: try.ours}}
		if bugs := c.Judge([]Item{item}, NewTally()); len(bugs) != try.bugs {
			t.Errorf("%s: %v", try.name, bugs)
		}
	}
}

func TestNodePortAtAVirtualAddress(t *testing.T) {
	c := situation(t, manifest("web", "10.96.0.5", "192.168.50.77", "Cluster", "10.244.2.2"))
	at := func(addr string) State {
		return state(t, strings.NewReplacer("10.96.0.5:80", addr+":30080").Replace(webTable), "")
	}
	if bugs, _ := judged(t, c, at("192.168.50.77"), state(t, "", "")); len(bugs) != 1 {
		t.Errorf("wrong verdict if all addresses serve node ports: %v", bugs)
	}
	c.Set.NodePorts = []string{"192.168.50.0/24"}
	if bugs, _ := judged(t, c, at("192.168.50.77"), state(t, "", "")); len(bugs) != 0 {
		t.Errorf("wrong verdict if kube-proxy serves a node port on an address of kube-ipvs0: %v", bugs)
	}
	if bugs, _ := judged(t, c, state(t, "", ""), at("192.168.50.77")); len(bugs) != 1 {
		t.Errorf("wrong verdict if kube-ipvs serves a node port on an address of kube-ipvs0: %v", bugs)
	}
}

func TestMasqueradeSource(t *testing.T) {
	set, err := draw.Parse([]byte(strings.NewReplacer("IPv4", "IPv6", "10.96.0.5", `"fd00:10:96::5"`, "198.18.7.1", `"2001:db8:18::1"`, "10.244.2.2", `"fd00:10:244:2::2"`).
		Replace(manifest("web", "10.96.0.5", "198.18.7.1", "Cluster", "10.244.2.2"))))
	if err != nil {
		t.Fatal(err)
	}
	set.Nodes = []draw.Node{{Name: "node-1"}, {Name: "node-2"}}
	c := NewCase(draw.World{Nodes: set.Nodes, Clients: []draw.Client{{Name: "client-1", Place: draw.Outside}}}, set, nil)
	saw := func(server, whom string) Value {
		return Value{Reach: Reach{Outcome: Answered, Seen: map[string]string{server: whom}}}
	}
	for _, try := range []struct {
		name, client, at string
		theirs, ours     Value
		bugs             int
	}{
		{"a client outside", "client-1", "[fd00:10:96::5]:80", saw("web-4", AsVirtual), saw("web-4", AsNode), 0},
		{"a pod, to an external address", "client", "[2001:db8:18::1]:80", saw("web-4", AsVirtual), saw("web-4", AsNode), 0},
		{"a pod, which keeps its address", "client", "[fd00:10:96::5]:80", saw("web-4", AsVirtual), saw("web-4", AsNode), 1},
		{"kube-ipvs shows a virtual address", "client-1", "[fd00:10:96::5]:80", saw("web-4", AsNode), saw("web-4", AsVirtual), 1},
		{"another server", "client-1", "[fd00:10:96::5]:80", saw("web-4", AsVirtual), saw("web-5", AsNode), 1},
		{"kube-ipvs does not answer", "client-1", "[fd00:10:96::5]:80", saw("web-4", AsVirtual), Value{Reach: Reach{Outcome: "timed out"}}, 1},
	} {
		item := Item{Kind: Connection, Key: Key{"TCP", netip.MustParseAddrPort(try.at)}, Client: try.client, KubeProxy: try.theirs, Ours: try.ours}
		if bugs := c.Judge([]Item{item}, NewTally()); len(bugs) != try.bugs {
			t.Errorf("%s: %v", try.name, bugs)
		}
	}
}

func TestFaultsNameUnusedAndGreedyRules(t *testing.T) {
	tally := NewTally()
	tally.Compared[VirtualServer] = 100
	tally.Rules["contested"] = Usage{Held: 80, Matched: 1}
	tally.Rules["sctp-refusal"] = Usage{Held: 2, Matched: 2}
	tally.Concerned = map[string]int{"": 5, "sctp-refusal": 5}
	faults := strings.Join(tally.Faults(LongRun), "\n")
	for _, want := range []string{"rule node-address never matched", "rule contested covers 80 of 100", "rule sctp-refusal covers 5 of 10"} {
		if !strings.Contains(faults, want) {
			t.Errorf("%q is missing in:\n%s", want, faults)
		}
	}
	if short := tally.Faults(1); len(short) != 2 {
		t.Errorf("Faults must not report unmatched rules in a run of one batch: %q", short)
	}
}

func TestServed(t *testing.T) {
	local := strings.NewReplacer("externalTrafficPolicy: Cluster", "externalTrafficPolicy: Local", "node-2}]", "node-1}]")
	remote := strings.NewReplacer("externalTrafficPolicy: Cluster", "externalTrafficPolicy: Local")
	ranges := strings.NewReplacer("type: NodePort", "type: LoadBalancer, loadBalancerSourceRanges: [192.168.50.0/24]",
		"---\napiVersion: disc", "status: {loadBalancer: {ingress: [{ip: 203.0.113.9}]}}\n---\napiVersion: disc")
	web := manifest("web", "10.96.0.5", "198.18.7.1", "Cluster", "10.244.2.2")
	for _, try := range []struct {
		name, objects, at, client string
		want                      bool
	}{
		{"policy Cluster", web, "198.18.7.1:80", "client-1", true},
		{"policy Local, the endpoint is here", local.Replace(web), "198.18.7.1:80", "client-1", true},
		{"policy Local, the endpoint is on another node", remote.Replace(web), "198.18.7.1:80", "client-1", false},
		{"the same, for a pod", remote.Replace(web), "198.18.7.1:80", "client", true},
		{"the same, for the node", remote.Replace(web), "198.18.7.1:80", Host, true},
		{"outside the ranges", ranges.Replace(web), "203.0.113.9:80", "client-1", false},
		{"inside the ranges", ranges.Replace(web), "203.0.113.9:80", Host, true},
		{"ranges are for load balancers only", ranges.Replace(web), "198.18.7.1:80", "client-1", true},
		{"no endpoint", strings.ReplaceAll(web, "10.244.2.2", "239.1.1.1"), "198.18.7.1:80", "client", false},
	} {
		c := situation(t, try.objects)
		key := Key{"TCP", netip.MustParseAddrPort(try.at)}
		if len(c.claims[key]) != 1 {
			t.Fatalf("%s: claims %v", try.name, c.claims[key])
		}
		if got := c.served(c.claims[key][0], try.client, false); got != try.want {
			t.Errorf("%s: got %v", try.name, got)
		}
	}
}

func TestVirtualEndpoint(t *testing.T) {
	const own, others, nodes, pod = "10.96.0.5", "198.18.7.2", "192.168.50.12", "10.244.2.2"
	text := strings.ReplaceAll(manifest("web", own, "198.18.7.1", "Cluster", own), "endpoints: [", "endpoints: [{addresses: ["+others+
		"], nodeName: node-2}, {addresses: ["+nodes+"], nodeName: node-2}, {addresses: ["+pod+"], nodeName: node-2}, ")
	table := func(endpoints ...string) State {
		lines := "-A -t 10.96.0.5:80 -s rr\n"
		for _, e := range endpoints {
			lines += "-a -t 10.96.0.5:80 -r " + e + ":8080 -m -w 1\n"
		}
		return state(t, lines, "")
	}
	binds := func(addr string, s State) State {
		return State{s.Servers, map[netip.Addr]bool{netip.MustParseAddr(addr): true}}
	}
	second := func(external string) string {
		return strings.ReplaceAll(manifest("api", "10.96.0.6", external, "Cluster", pod), "30080", "30081")
	}
	all := table(own, others, nodes, pod)
	for _, try := range []struct {
		name, external string
		theirs, ours   State
		bugs           int
	}{
		{"we leave both out", others, all, table(nodes, pod), 0},
		{"we serve both", others, all, all, 1},
		{"we serve the other's", others, all, table(others, nodes, pod), 1},
		{"we leave a good one out", others, all, table(pod), 1},
		{"kube-proxy lacks a good one", others, table(own, others, nodes), table(nodes, pod), 1},
		{"the other has another address", "198.18.7.3", all, table(others, nodes, pod), 0},
		{"another node's is not bound", nodes, all, table(others, nodes, pod), 0},
		{"another node's was served before", nodes, binds(nodes, all), binds(nodes, table(others, pod)), 0},
		{"another node's was served before, and serves", nodes, binds(nodes, all), binds(nodes, table(others, nodes, pod)), 1},
	} {
		c := situation(t, text+second(try.external))
		if bugs, tally := judged(t, c, try.theirs, try.ours); len(bugs) != try.bugs || tally.Rules["virtual-endpoint"].Held != 1 {
			t.Errorf("%s: %v", try.name, bugs)
		}
	}
}

// TestPortLikeNodePort: an IPv4 node port does not affect the IPv6 port with the same number.
func TestPortLikeNodePort(t *testing.T) {
	web := manifest("web", "10.96.0.5", "198.18.7.1", "Cluster", "10.244.2.2")
	same := strings.NewReplacer("port: 80,", "port: 30080,", "30080}", "30081}")
	c := situation(t, web+same.Replace(manifest("four", "10.96.0.6", "198.18.7.2", "Cluster", "10.244.2.2"))+
		same.Replace(manifest("six", "fd00:10:96::6", "2001:db8::6", "Cluster", "fd00:10:244:2::2")))
	c.World.Clients = append(c.World.Clients, draw.Client{Name: "pod", Place: draw.InPod})
	rule := Rules[slices.IndexFunc(Rules, func(r Rule) bool { return r.ID == "port-like-node-port" })]
	for address, want := range map[string]bool{"10.96.0.6:30080": true, "[fd00:10:96::6]:30080": false} {
		item := Item{Kind: Connection, Client: "pod", Key: Key{"TCP", netip.MustParseAddrPort(address)}}
		if got := rule.applies(c, item); got != want {
			t.Errorf("%s: applies %v, want %v", address, got, want)
		}
	}
}
