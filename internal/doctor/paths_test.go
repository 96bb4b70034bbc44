package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

func at(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }

func ready(addr, node string) view.Endpoint {
	weight := uint32(1)
	return view.Endpoint{Address: at(addr), Node: node, State: view.Ready, Wanted: &weight}
}

// TestPaths: each kind of frontend has a path from every kind of client that may use it. A pod is its own client only
// if no other pod exists. The node opens TCP connections only, and none to frontends with source ranges.
func TestPaths(t *testing.T) {
	here, far := ready("10.244.0.7:8080", "node-a"), ready("10.244.1.7:8080", "node-b")
	served := func(kind view.Kind, addr, protocol string, ends ...view.Endpoint) view.Frontend {
		return view.Frontend{Kind: kind, Address: at(addr), Protocol: protocol, State: view.Served, Endpoints: ends}
	}
	ranged := served(view.LoadBalancer, "203.0.113.1:80", "tcp", far)
	ranged.SourceRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
	local := served(view.ClusterIP, "10.96.0.9:80", "tcp", far)
	local.State = view.NoLocalEndpoints
	v := &view.View{Node: view.Node{Name: "node-a", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}, Services: []view.Service{
		{Namespace: "default", Name: "web", Frontends: []view.Frontend{
			served(view.ClusterIP, "10.96.0.7:53", "udp", here), served(view.ClusterIP, "10.96.0.7:80", "tcp", here), ranged,
			served(view.NodePort, "192.0.2.1:30080", "tcp", far),
		}},
		{Namespace: "default", Name: "without endpoints here", Frontends: []view.Frontend{local}},
		{Namespace: "default", Name: "kubernetes", Frontends: []view.Frontend{served(view.ClusterIP, "10.96.0.1:443", "tcp", ready("192.0.2.1:6443", "node-a"))}},
	}}
	var have []string
	for _, p := range Paths(v, Choice{Pods: endpointsHere(v)}) {
		have = append(have, fmt.Sprintf("%s %s/%s from %s, %s, vital %t, open %t", p.Service, p.To.Addr, p.To.Protocol, p.Sender, p.From, p.Vital, p.Open))
	}
	want := []string{
		"default/kubernetes 10.96.0.1:443/tcp from this node, 10.96.0.1, vital true, open true",
		"default/kubernetes 10.96.0.1:443/tcp from a pod, 10.244.0.7, vital true, open false",
		"default/web 10.96.0.7:80/tcp from this node, 10.96.0.7, vital false, open true",
		"default/web 10.96.0.7:80/tcp from a pod, 10.244.0.7, vital false, open false",
		"default/web 203.0.113.1:80/tcp from outside, 198.51.100.0, vital false, open false",
		"default/web 192.0.2.1:30080/tcp from this node, 192.0.2.1, vital false, open true",
		"default/web 192.0.2.1:30080/tcp from a pod, 10.244.0.7, vital false, open false",
		"default/web 192.0.2.1:30080/tcp from outside, 203.0.113.253, vital false, open false",
	}
	if !slices.Equal(have, want) {
		t.Errorf("paths:\n%s\nwant\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
}

// TestPathsAreOfEveryKind: even if some paths are dropped, the remaining paths cover every kind.
func TestPathsAreOfEveryKind(t *testing.T) {
	frontend := func(kind view.Kind, addr string) view.Frontend {
		return view.Frontend{Kind: kind, Address: at(addr), Protocol: "tcp", State: view.Served, Endpoints: []view.Endpoint{ready("10.244.1.7:8080", "node-b")}}
	}
	v := &view.View{Node: view.Node{Name: "node-a"}}
	for i := range 80 {
		s := view.Service{Namespace: "default", Name: fmt.Sprint(i), Frontends: []view.Frontend{frontend(view.ClusterIP, "10.96.0.1:80")}}
		if i == 79 {
			s.Frontends = append(s.Frontends, frontend(view.LoadBalancer, "[2001:db8::1]:80"))
		}
		v.Services = append(v.Services, s)
	}
	paths := Paths(v, Choice{Pods: endpointsHere(v)})
	if len(paths) != MaxPaths || !slices.ContainsFunc(paths, func(p Path) bool { return p.kind == view.LoadBalancer && p.Sender == fromOutside }) {
		t.Errorf("got %d paths, the last is %+v", len(paths), paths[len(paths)-1])
	}
}

// TestPathsAreBounded: for any set of Services, the number of paths and connections is limited, and connections are
// spread across Services.
func TestPathsAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := &view.View{Node: view.Node{Name: "node-a"}}
		for i := range rapid.IntRange(0, 80).Draw(t, "Services") {
			s := view.Service{Namespace: "default", Name: fmt.Sprint(i)}
			for range rapid.IntRange(1, 4).Draw(t, "frontends") {
				s.Frontends = append(s.Frontends, view.Frontend{
					Kind:     rapid.SampledFrom([]view.Kind{view.ClusterIP, view.NodePort, view.LoadBalancer, view.ExternalIP}).Draw(t, "kind"),
					Address:  rapid.SampledFrom([]netip.AddrPort{at("10.96.0.1:80"), at("[fd00::1]:80"), at("127.0.0.1:80")}).Draw(t, "address"),
					Protocol: rapid.SampledFrom([]string{"tcp", "udp", "sctp"}).Draw(t, "protocol"),
					State:    rapid.SampledFrom([]view.FrontendState{view.Served, view.Conflict, view.Missing}).Draw(t, "state"),
					Endpoints: rapid.SliceOfN(rapid.SampledFrom([]view.Endpoint{
						ready("10.244.0.7:8080", "node-a"), ready("10.244.1.7:8080", "node-b"), {Address: at("10.244.0.8:8080"), State: view.NotReady},
					}), 0, 3).Draw(t, "endpoints"),
				})
			}
			v.Services = append(v.Services, s)
		}
		var walks []Walk
		services := map[string]bool{}
		for _, p := range Paths(v, Choice{Pods: endpointsHere(v)}) {
			walks = append(walks, Walked(p, explain.Explanation{}))
			if p.Open {
				services[p.Service] = true
			}
			if p.Open && (p.Sender != fromNode || p.To.Protocol.String() != "tcp") || p.To.Addr.Addr().IsLoopback() {
				t.Fatalf("unexpected path %+v", p)
			}
		}
		connects := ToConnect(walks)
		connected := map[string]bool{}
		for _, i := range connects {
			connected[walks[i].Service] = true
		}
		checkEndpointsToConnect(t, v, walks)
		if len(walks) > MaxPaths || len(connects) > MaxConnects || len(connected) < min(len(services), MaxConnects) {
			t.Fatalf("got %d paths, and %d connections to %d of %d Services", len(walks), len(connects), len(connected), len(services))
		}
	})
}

// checkEndpointsToConnect checks that connections to endpoints count toward MaxConnects, and that each endpoint
// receives at most one.
func checkEndpointsToConnect(t *rapid.T, v *view.View, walks []Walk) {
	seen := map[netip.AddrPort]bool{}
	for _, e := range EndpointsToConnect(v, walks) {
		if seen[e.Address] || e.Address.Addr() != netip.MustParseAddr("10.244.0.7") {
			t.Fatalf("unexpected endpoint %+v", e)
		}
		seen[e.Address] = true
	}
	if n := len(ToConnect(walks)); n+len(seen) > MaxConnects {
		t.Fatalf("doctor opens %d connections to Services and %d to endpoints", n, len(seen))
	}
}

// TestEveryVerdictIsJudged: a path has no finding only if explain traces the packet to an endpoint or a connection
// succeeds.
func TestEveryVerdictIsJudged(t *testing.T) {
	const refused = "connection refused"
	type connection struct {
		tried   bool
		failure string
	}
	none, succeeded, failed := connection{}, connection{tried: true}, connection{true, refused}
	for _, c := range []struct {
		verdict  explain.Verdict
		sender   Sender
		vital    bool
		connect  connection
		severity finding.Severity
	}{
		{explain.Passes, fromPod, false, none, ""},
		{explain.Passes, fromNode, false, succeeded, ""},
		{explain.Passes, fromNode, false, failed, finding.Warning},
		{explain.Passes, fromNode, true, failed, finding.Broken},
		{explain.Stops, fromPod, false, none, finding.Broken},
		{explain.Stops, fromOutside, true, none, finding.Warning},
		{explain.Stops, fromNode, true, succeeded, finding.Warning},
		{explain.Stops, fromNode, false, failed, finding.Broken},
		{explain.Partly, fromPod, false, none, finding.Broken},
		{explain.Partly, fromNode, false, succeeded, finding.Warning},
		{explain.Partly, fromNode, false, failed, finding.Broken},
		{explain.Partly, fromOutside, true, none, finding.Warning},
		{explain.NoService, fromNode, false, none, finding.Broken},
		{explain.Unclear, fromPod, false, none, finding.Warning},
		{explain.Unclear, fromNode, false, succeeded, ""},
		{explain.Unclear, fromNode, false, failed, finding.Warning},
		{explain.Unclear, fromNode, true, failed, finding.Broken},
		{explain.Differs, fromNode, true, failed, finding.Broken},
		{explain.Depends, fromOutside, false, none, finding.Warning},
		{explain.Unknown, fromPod, true, none, finding.Warning},
		{explain.Differs, fromNode, true, succeeded, finding.Warning},
		{"a verdict that doctor does not know", fromPod, false, none, finding.Warning},
	} {
		w := Walk{
			Path:    Path{Question: explain.Question{To: kernel.ServerKey{Addr: at("10.96.0.1:443")}}, Service: "default/kubernetes", Sender: c.sender, Vital: c.vital},
			Verdict: c.verdict, Causes: []explain.Cause{{Text: "because", Verdict: c.verdict}}, Connected: c.connect.tried, Failure: c.connect.failure,
		}
		found := checkPaths(Facts{Walks: []Walk{w}})
		var severity finding.Severity
		if len(found) > 0 {
			severity = found[0].Severity
		}
		if severity != c.severity {
			t.Errorf("%s from %s, vital %t, connection %+v: %v, want severity %q", c.verdict, c.sender, c.vital, c.connect, found, c.severity)
		}
	}
}

// TestPathsToSuspects: Paths covers the frontend of each chosen connection, even if the Service has another frontend of the same kind and the limit
// is reached.
func TestPathsToSuspects(t *testing.T) {
	v := &view.View{Node: view.Node{Name: "node-a"}}
	for i := range 80 {
		s := view.Service{Namespace: "default", Name: fmt.Sprint(i)}
		for port := range 3 {
			s.Frontends = append(s.Frontends, view.Frontend{
				Kind: view.ClusterIP, Address: at(fmt.Sprintf("10.96.0.%d:%d", i, port+1)), Protocol: "tcp", State: view.Served,
				Endpoints: []view.Endpoint{ready("10.244.1.7:8080", "node-b")},
			})
		}
		v.Services = append(v.Services, s)
	}
	suspects := []kernel.ServerKey{{Addr: at("10.96.0.79:2"), Protocol: inet.TCP}, {Addr: at("10.96.0.79:3"), Protocol: inet.TCP}}
	var choice Choice
	for _, key := range suspects {
		choice.Connections = append(choice.Connections, explain.Question{To: key, From: outsiders[inet.IPv4]})
	}
	paths := Paths(v, choice)
	for _, key := range suspects {
		if !slices.ContainsFunc(paths, func(p Path) bool { return p.To == key && p.Sender == fromNode }) {
			t.Errorf("no path to %s", key)
		}
	}
	if len(paths) != MaxPaths {
		t.Errorf("%d paths", len(paths))
	}
}

// TestOneCauseIsOneFinding: paths that differ only in their addresses share a finding, and the evidence lists the addresses. Rules with different
// addresses are different causes.
func TestOneCauseIsOneFinding(t *testing.T) {
	walk := func(service, addr string, from Sender, reasons ...string) Walk {
		to := kernel.ServerKey{Addr: at(addr), Protocol: inet.TCP}
		w := Walk{Path: Path{Question: explain.Question{To: to, From: to.Addr.Addr()}, Service: service, Sender: from}, Verdict: explain.Stops}
		for _, reason := range reasons {
			c := explain.Cause{Text: reason, Verdict: explain.Stops}
			if _, rule, found := strings.Cut(reason, "rule: "); found {
				c.Rules = []string{rule}
			}
			w.Causes = append(w.Causes, c)
		}
		return w
	}
	const six, four = "the address fd00::10 is not bound to kube-ipvs0", "the address 10.96.0.9 is not bound to kube-ipvs0"
	found := checkPaths(Facts{Walks: []Walk{
		walk("default/a", "[fd00::10]:80", fromNode, six), walk("default/b", "10.96.0.9:80", fromNode, four), walk("default/b", "10.96.0.9:81", fromPod, four),
		walk("default/c", "10.96.0.7:80", fromNode, "packets to endpoint 10.244.0.7:8080 are stopped", "packets to endpoint 10.244.0.8:8080 are stopped"),
		walk("default/d", "10.96.0.6:80", fromNode, "packets to endpoint 10.244.0.9:8080 are stopped"),
		walk("default/e", "10.96.0.1:80", fromNode, "stopped in filter INPUT; rule: -A INPUT -d 10.96.0.1/32 -j DROP"),
		walk("default/f", "10.96.0.2:80", fromNode, "stopped in filter INPUT; rule: -A INPUT -d 10.96.0.2/32 -j DROP"),
	}})
	var have []string
	for _, f := range found {
		have = append(have, f.Problem+" | "+strings.Join(f.Evidence, " | ")+" | "+f.Remedy)
	}
	const prefix, more = "packets to Services do not arrive: ", "` shows every step; change the rule or object that it names"
	want := []string{
		prefix + "the address ADDRESS is not bound to kube-ipvs0 | default/a at [fd00::10]:80/tcp from this node | default/b at 10.96.0.9:80/tcp from this node | " +
			"default/b at 10.96.0.9:81/tcp from a pod (10.96.0.9) | `kube-ipvs explain 10.96.0.9:81/tcp --from 10.96.0.9" + more,
		prefix + "packets to endpoint ADDRESS are stopped | default/c at 10.96.0.7:80/tcp from this node, ADDRESS: 10.244.0.7:8080, 10.244.0.8:8080 | " +
			"default/d at 10.96.0.6:80/tcp from this node, ADDRESS: 10.244.0.9:8080 | `kube-ipvs explain 10.96.0.7:80/tcp --from 10.96.0.7" + more,
		prefix + "stopped in filter INPUT; rule: -A INPUT -d 10.96.0.1/32 -j DROP | default/e at 10.96.0.1:80/tcp from this node | " +
			"`kube-ipvs explain 10.96.0.1:80/tcp --from 10.96.0.1" + more,
		prefix + "stopped in filter INPUT; rule: -A INPUT -d 10.96.0.2/32 -j DROP | default/f at 10.96.0.2:80/tcp from this node | " +
			"`kube-ipvs explain 10.96.0.2:80/tcp --from 10.96.0.2" + more,
	}
	if !slices.Equal(have, want) {
		t.Errorf("findings:\n%s\nwant\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
}

// TestFindingsShareNoCause: no two findings name the same foreign rule or the same state of an object. Each cause on a broken path is in a
// finding that names the path.
func TestFindingsShareNoCause(t *testing.T) {
	rules := []string{"-d 10.96.0.1/32 -j A", "-d 10.96.0.2/32 -j B", "-s 10.244.0.0/16 -j C"}
	states := []string{"the set X lacks %s", "the address %s is not bound", "could not read Y"}
	verdicts := []explain.Verdict{explain.Stops, explain.Partly, explain.Unclear, explain.Depends, explain.Differs}
	rapid.Check(t, func(t *rapid.T) {
		var facts Facts
		for i := range rapid.IntRange(1, 12).Draw(t, "paths") {
			to := kernel.ServerKey{Addr: at(fmt.Sprintf("10.96.1.%d:80", i)), Protocol: inet.TCP}
			sender := rapid.SampledFrom([]Sender{fromNode, fromPod, fromOutside}).Draw(t, "sender")
			w := Walk{Path: Path{Question: explain.Question{To: to, From: to.Addr.Addr()}, Service: fmt.Sprintf("default/s%d,", i), Sender: sender}, Verdict: explain.Passes}
			for range rapid.IntRange(0, 4).Draw(t, "causes") {
				c := explain.Cause{Verdict: rapid.SampledFrom(verdicts).Draw(t, "verdict")}
				endpoint := fmt.Sprintf("10.244.0.%d", rapid.IntRange(1, 9).Draw(t, "endpoint"))
				if rapid.Bool().Draw(t, "foreign") {
					c.Rules = slices.Compact(slices.Sorted(slices.Values(rapid.SliceOfN(rapid.SampledFrom(rules), 1, 2).Draw(t, "rules"))))
					c.Text = "packets of " + endpoint + " stop; rule: " + strings.Join(c.Rules, ", ")
				} else {
					c.Text = strings.Replace(rapid.SampledFrom(states).Draw(t, "state"), "%s", endpoint, 1)
					c.Verdict = map[bool]explain.Verdict{true: explain.Unclear, false: c.Verdict}[strings.Contains(c.Text, "read")]
				}
				w.Causes = append(w.Causes, c)
				w.Verdict = slices.MinFunc([]explain.Verdict{w.Verdict, c.Verdict}, explain.Verdict.Compare)
			}
			facts.Walks = append(facts.Walks, w)
		}
		found := checkPaths(facts)
		for _, cause := range append(slices.Clone(rules), "the set X lacks", "is not bound", "could not read Y") {
			var named []finding.Finding
			for _, f := range found {
				if strings.Contains(f.Problem, cause) {
					named = append(named, f)
				}
			}
			for _, w := range facts.Walks {
				has := slices.ContainsFunc(w.Causes, func(c explain.Cause) bool { return strings.Contains(c.Text, cause) })
				if has && (len(named) != 1 || len(named[0].Evidence) <= shown && !strings.Contains(strings.Join(named[0].Evidence, " "), w.Service)) {
					t.Fatalf("%q affects %s, and is named by %d findings: %+v\nof %+v", cause, w, len(named), named, found)
				}
			}
		}
	})
}

// TestOneRuleIsOneFinding: a rule is one cause, even if its effect differs between endpoints and clients. Two rules are two causes, even if they
// affect the same path. If a connection opens, a rule may still stop later packets.
func TestOneRuleIsOneFinding(t *testing.T) {
	walk := func(sender Sender, verdict explain.Verdict, causes ...explain.Cause) Walk {
		to := kernel.ServerKey{Addr: at("10.96.0.1:80"), Protocol: inet.TCP}
		return Walk{Path: Path{Question: explain.Question{To: to, From: to.Addr.Addr()}, Service: "default/a", Sender: sender}, Verdict: verdict, Causes: causes, Connected: true}
	}
	zone, count := []string{"-j CT --zone 9"}, []string{"ct packets > 3 drop"}
	var have []string
	for _, f := range checkPaths(Facts{Walks: []Walk{
		walk(fromPod, explain.Partly, explain.Cause{Text: "this rule may stop acknowledgments: ct packets > 3 drop", Verdict: explain.Unclear, Rules: count, Later: true},
			explain.Cause{Text: "replies of 10.244.0.1 belong to no connection; rule: -j CT --zone 9", Verdict: explain.Partly, Rules: zone},
			explain.Cause{Text: "replies of 10.244.0.2 belong to no connection; rule: -j CT --zone 9", Verdict: explain.Partly, Rules: zone}),
		walk(fromNode, explain.Unclear, explain.Cause{Text: "acknowledgments belong to no connection; rule: -j CT --zone 9", Verdict: explain.Unclear, Rules: zone},
			explain.Cause{Text: "this rule may stop data packets: ct packets > 3 drop", Verdict: explain.Unclear, Rules: count, Later: true}),
	}}) {
		have = append(have, fmt.Sprint(f.Severity, ": ", f.Problem))
	}
	want := []string{
		"warning: doctor cannot tell whether packets arrive: this rule may stop acknowledgments: ct packets > 3 drop",
		"warning: some connections to Services fail: replies of ADDRESS belong to no connection; rule: -j CT --zone 9",
	}
	if !slices.Equal(have, want) {
		t.Errorf("findings:\n%s\nwant\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
}

// TestPathsWithoutPods: if doctor knows a pod of one family only, the paths from pods of the other family are not checked.
func TestPathsWithoutPods(t *testing.T) {
	for _, c := range []struct {
		senders map[string]Sender // by the Service's address
		want    string            // the families
	}{
		{map[string]Sender{"10.96.0.1:80": fromPod, "[fd00:10:96::1]:80": fromPod}, ""},
		{map[string]Sender{"10.96.0.1:80": fromPod, "[fd00:10:96::1]:80": fromNode}, "IPv6"},
		{map[string]Sender{"10.96.0.1:80": fromOutside, "[fd00:10:96::1]:80": fromPod}, "IPv4"},
		{map[string]Sender{"10.96.0.1:80": fromNode, "[fd00:10:96::1]:80": fromNode}, "IPv4 IPv6"},
		{map[string]Sender{"10.96.0.1:80": fromPod}, ""},
		{map[string]Sender{"10.96.0.1:80": fromNode}, "IPv4"},
	} {
		n := well()
		for to, sender := range c.senders {
			key := kernel.ServerKey{Addr: at(to), Protocol: inet.TCP}
			for _, from := range []Sender{fromNode, sender} {
				n.Walks = append(n.Walks, Walk{Path: Path{Question: explain.Question{To: key}, Sender: from}, Verdict: explain.Passes})
			}
		}
		var have []string
		for _, u := range Examine(n.Facts).Unchecked {
			if family, about := strings.CutPrefix(u, "paths from pods over "); about {
				have = append(have, strings.Split(family, ":")[0])
			}
		}
		if strings.Join(have, " ") != c.want {
			t.Errorf("%v: the paths from pods over %q are not checked, want %q", c.senders, have, c.want)
		}
	}
}

// TestAgentElsewhere: if the agent runs in another network namespace, doctor reports that, and nothing that follows from it.
func TestAgentElsewhere(t *testing.T) {
	n := well()
	n.View.Node.NetworkNamespace, n.Namespace = "net:[1]", "net:[2]"
	n.View.Services = []view.Service{{Namespace: "default", Name: "kubernetes"}}
	n.Walks = []Walk{{Path: Path{Service: "default/web"}, Verdict: explain.Stops, Causes: []explain.Cause{{Text: "the device kube-ipvs0 does not exist", Verdict: explain.Stops}}}}
	report := Examine(n.Facts)
	if len(report.Findings) != 1 || report.Verdict != string(finding.Broken) || !strings.Contains(fmt.Sprint(report.Findings[0].Evidence), "net:[1]") || len(report.Unchecked) == 0 {
		t.Errorf("report %+v", report)
	}
	n.Namespace = ""
	if found := Examine(n.Facts).Findings; slices.ContainsFunc(found, func(f finding.Finding) bool { return f.Subject == "network namespace" }) {
		t.Errorf("an unknown namespace is another one: %v", found)
	}
}

// TestPathsOfClients: a pod that is no endpoint is the preferred client, a pod within the source ranges is a pod and not a client outside, and
// single connections have paths.
func TestPathsOfClients(t *testing.T) {
	ranged := view.Frontend{
		Kind: view.LoadBalancer, Address: at("203.0.113.1:80"), Protocol: "tcp", State: view.Served, Endpoints: []view.Endpoint{ready("10.244.0.7:8080", "node-a")},
		SourceRanges: []netip.Prefix{netip.MustParsePrefix("10.244.0.9/32"), netip.MustParsePrefix("198.51.100.0/24")},
	}
	plain := view.Frontend{Kind: view.ClusterIP, Address: at("10.96.0.7:80"), Protocol: "tcp", State: view.Served, Endpoints: ranged.Endpoints}
	facts := Facts{
		View: &view.View{Node: view.Node{Name: "node-a"}, Services: []view.Service{{Namespace: "default", Name: "web", Frontends: []view.Frontend{plain, ranged}}}},
	}
	n := &node{addresses: []kernel.Pod{pod("10.244.0.7", "cali1"), pod("10.244.0.8", "cali2"), pod("10.244.0.9", "cali3"), pod("172.17.0.2", "docker0")}}
	facts.ReadPods(n)
	key := func(f view.Frontend) kernel.ServerKey { return kernel.ServerKey{Addr: f.Address, Protocol: inet.TCP} }
	var have []string
	for _, p := range Paths(facts.View, Choice{Pods: facts.ClientPods(), Connections: []explain.Question{
		{To: key(plain), From: netip.MustParseAddr("10.244.0.9")}, {To: key(plain), From: netip.MustParseAddr("198.51.100.11")},
	}}) {
		have = append(have, fmt.Sprintf("%s from %s, %s", p.To.Addr, p.Sender, p.From))
	}
	want := []string{
		"203.0.113.1:80 from a pod, 10.244.0.9", "203.0.113.1:80 from outside, 198.51.100.0", "10.96.0.7:80 from this node, 10.96.0.7", "10.96.0.7:80 from a pod, 10.244.0.8",
		"10.96.0.7:80 from a pod, 10.244.0.9", "10.96.0.7:80 from outside, 198.51.100.11",
	}
	if !slices.Equal(have, want) {
		t.Errorf("paths:\n%s\nwant\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
}

func pod(addr, device string) kernel.Pod {
	return kernel.Pod{Addr: netip.MustParseAddr(addr), Interface: device}
}
