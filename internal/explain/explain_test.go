package explain_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

const (
	pod, otherPod    = "10.244.0.1", "10.244.0.2"
	outside          = "198.51.100.7"
	outside6         = "2001:db8::7"
	node             = "192.0.2.1"
	clusterIP        = "10.96.0.1"
	balancer         = "203.0.113.1"
	balancerHTTP     = balancer + ":80"
	clusterIPHTTP    = clusterIP + ":80"
	client, someNode = "the client", "this node"
)

func web() *model.Service {
	s := compiletest.Service("web", clusterIP, pod, otherPod)
	s.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr(balancer)}
	s.Ports[0].NodePort = 30080
	return s
}

func toOtherNode(s *model.Service) *model.Service {
	for i := range s.Slices[0].Endpoints {
		s.Slices[0].Endpoints[i].Node = "node-b"
	}
	return s
}

func TestPaths(t *testing.T) {
	for _, c := range []struct {
		name     string
		service  func(*model.Service)
		to, from string
		verdict  explain.Verdict
		sees     map[string]string // the source that each endpoint sees
		reason   string
	}{
		{"pod to ClusterIP", nil, clusterIPHTTP, "10.244.3.3", explain.Passes, map[string]string{pod: client, otherPod: client}, ""},
		{"outside to ClusterIP", nil, clusterIPHTTP, outside, explain.Passes, map[string]string{pod: someNode, otherPod: someNode}, ""},
		{"node to ClusterIP", nil, clusterIPHTTP, node, explain.Passes, map[string]string{pod: someNode, otherPod: someNode}, ""},
		{"node with the ClusterIP as source", nil, clusterIPHTTP, clusterIP, explain.Passes, map[string]string{pod: someNode, otherPod: someNode}, ""},
		{"pod to itself", nil, clusterIPHTTP, pod, explain.Passes, map[string]string{pod: someNode, otherPod: client}, ""},
		{"outside to balancer", nil, balancerHTTP, outside, explain.Passes, map[string]string{pod: someNode, otherPod: someNode}, ""},
		{"node port", nil, node + ":30080", outside, explain.Passes, map[string]string{pod: someNode, otherPod: someNode}, ""},
		{"external Local, endpoints here", func(s *model.Service) { s.ExternalLocal = true }, balancerHTTP, outside,
			explain.Passes, map[string]string{pod: client, otherPod: client}, ""},
		{"external Local, node with the balancer's address as source", func(s *model.Service) { s.ExternalLocal = true }, balancerHTTP, balancer,
			explain.Passes, map[string]string{pod: someNode, otherPod: someNode}, ""},
		{"external Local, endpoints on another node, from outside", func(s *model.Service) { s.ExternalLocal = true; toOtherNode(s) }, balancerHTTP, outside,
			explain.Stops, nil, "external traffic policy Local, no endpoint on this node"},
		{"external Local, endpoints on another node, from a pod", func(s *model.Service) { s.ExternalLocal = true; toOtherNode(s) }, balancerHTTP, "10.244.3.3",
			explain.Passes, map[string]string{pod: client, otherPod: client}, "pods and this node are served"},
		{"external Local, endpoints on another node, from any client", func(s *model.Service) { s.ExternalLocal = true; toOtherNode(s) }, balancerHTTP, "",
			explain.Depends, map[string]string{pod: client, otherPod: client}, "this rule stops, or may stop, the packets of some clients"},
		{"internal Local, endpoints on another node", func(s *model.Service) { s.InternalLocal = true; toOtherNode(s) }, clusterIPHTTP, "10.244.3.3",
			explain.Stops, nil, "internal traffic policy Local, no endpoint on this node"},
		{"source range, client inside", func(s *model.Service) { s.SourceRanges = prefixes("198.51.100.0/24") }, balancerHTTP, outside,
			explain.Passes, map[string]string{pod: someNode, otherPod: someNode}, ""},
		{"source range, client outside", func(s *model.Service) { s.SourceRanges = prefixes("198.51.100.0/28") }, balancerHTTP, "198.51.100.77",
			explain.Stops, nil, "client 198.51.100.77 is not in spec.loadBalancerSourceRanges [198.51.100.0/28]"},
		{"no endpoints, from a pod", func(s *model.Service) { s.Slices[0].Endpoints = nil }, clusterIPHTTP, "10.244.3.3",
			explain.Stops, nil, "NoEndpoints"},
		{"no endpoints, from the node", func(s *model.Service) { s.Slices[0].Endpoints = nil }, clusterIPHTTP, node,
			explain.Stops, nil, "no endpoint accepts new connections: the Service has no endpoints"},
		{"no endpoints, node port", func(s *model.Service) { s.Slices[0].Endpoints = nil }, node + ":30080", outside,
			explain.Stops, nil, "node port without endpoints"},
		{"unready endpoints, from the node", func(s *model.Service) {
			for i := range s.Slices[0].Endpoints {
				s.Slices[0].Endpoints[i].Ready, s.Slices[0].Endpoints[i].Serving = false, false
			}
		}, clusterIPHTTP, node, explain.Stops, nil, "10.244.0.1:8080 is NotReady"},
		{"unserved port", nil, clusterIP + ":81", outside, explain.Stops, nil, "no Service on this node has the frontend 10.96.0.1:81/tcp"},
		{"unserved protocol", nil, clusterIPHTTP + "/udp", outside, explain.Stops, nil, "unserved port"},
		{"address of no Service", nil, "8.8.8.8:53/udp", outside, explain.NoService, nil, "no Service on this node has the address 8.8.8.8"},
		{"port of no Service at a loopback address", nil, "127.0.0.1:22", node, explain.NoService, nil, "no Service"},
		{"node port at a loopback address", nil, "127.0.0.1:30080", node, explain.Stops, nil, "use another address of this node for the node port of Service default/web"},
		{"from a loopback address", nil, clusterIPHTTP, "127.0.0.1", explain.Stops, nil, "loopback"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := web()
			if c.service != nil {
				c.service(s)
			}
			e := newWorld(t, s).ask(c.to, c.from)
			if e.Verdict != c.verdict || c.reason != "" && !says(e, c.reason) || c.reason == "" && len(e.Reasons) > 0 {
				t.Errorf("want %s because of %q, got\n%s", c.verdict, c.reason, steps(e))
			}
			sees := map[string]string{}
			for _, o := range e.Endpoints {
				sees[o.Address.Addr().String()] = o.Source
			}
			if d := cmp.Diff(c.sees, sees); d != "" && len(c.sees)+len(sees) > 0 {
				t.Errorf("%s\n%s", d, steps(e))
			}
		})
	}
}

// TestLoopbackNodePorts: the agent's process accepts connections on the loopback addresses in nodePortAddresses.
func TestLoopbackNodePorts(t *testing.T) {
	w := newWorld(t, web())
	w.view.Node.LoopbackAddresses = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	if e := w.ask("127.0.0.1:30080", node); e.Verdict != explain.NoService || !says(e, "explain that address instead") {
		t.Errorf("%s\n%s", e.Verdict, steps(e))
	}
	if e := w.ask("[::1]:30080", "fd00:2::1"); e.Verdict != explain.Stops || !says(e, "add localhost to nodePortAddresses") {
		t.Errorf("%s\n%s", e.Verdict, steps(e))
	}
}

func prefixes(texts ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// TestBroken: the explanation names the missing object, or the object that stops the packet.
func TestBroken(t *testing.T) {
	key := kernel.ServerKey{Addr: netip.MustParseAddrPort(clusterIPHTTP), Protocol: inet.TCP}
	element := kernel.Element{Addr: key.Addr.Addr(), Protocol: inet.TCP, Port: 80}
	for _, c := range []struct {
		name    string
		damage  func(*world)
		verdict explain.Verdict
		reason  string
	}{
		{"address", func(w *world) { delete(w.kernel.Addresses, key.Addr.Addr()) }, explain.Stops, "address 10.96.0.1 is not bound"},
		{"device", func(w *world) { clear(w.kernel.Addresses); w.kernel.Device = false }, explain.Stops, "device kube-ipvs0 does not exist"},
		{"virtual server", func(w *world) { delete(w.kernel.Servers, key) }, explain.Stops, "the virtual server -t 10.96.0.1:80 is missing"},
		{"destination", func(w *world) {
			s := w.kernel.Servers[key]
			s.Destinations = s.Destinations[1:]
			w.kernel.Servers[key] = s
		}, explain.Differs, "the destination 10.244.0.1:8080 of -t 10.96.0.1:80 is missing"},
		{"weight", func(w *world) { w.kernel.Servers[key].Destinations[0].Weight = 0 }, explain.Differs, "has weight 0 and must have 1"},
		{"scheduler", func(w *world) {
			s := w.kernel.Servers[key]
			s.Scheduler = "sh"
			w.kernel.Servers[key] = s
		}, explain.Differs, `is "-t 10.96.0.1:80 -s sh" and must be "-t 10.96.0.1:80 -s rr"`},
		{"served port", func(w *world) { delete(w.kernel.Members["KIPVS-4-CLUSTER-IP"], element) }, explain.Stops, "KIPVS-4-CLUSTER-IP lacks 10.96.0.1,tcp:80"},
		{"ledger entry", func(w *world) { delete(w.kernel.Members["KIPVS-4-LEDGER"], element) }, explain.Differs, "the owner record of -t 10.96.0.1:80"},
		{"hairpin entry", func(w *world) { clear(w.kernel.Members["KIPVS-4-HAIRPIN"]) }, explain.Differs, "KIPVS-4-HAIRPIN lacks 10.244.0.1,tcp:8080,10.244.0.1"},
		{"set", func(w *world) { delete(w.kernel.Sets, "KIPVS-4-ALLOWED") }, explain.Differs, "the set KIPVS-4-ALLOWED is missing"},
		{"sysctl", func(w *world) { w.kernel.Sysctls["net/ipv4/vs/conntrack"] = "0" }, explain.Differs, `the sysctl net/ipv4/vs/conntrack is "0" and must be "1"`},
		{"jump", func(w *world) {
			clear(w.kernel.State.Rules[inet.IPv4].Jumps)
		}, explain.Differs, `the rule "Services" is missing in nat PREROUTING`},
		{"rule", func(w *world) {
			chain := kernel.ChainID{Table: "nat", Chain: "KUBE-MARK-MASQ"}
			w.kernel.State.Rules[inet.IPv4].Chains[chain] = nil
		}, explain.Differs, `the rule "masquerade when leaving" is missing in nat KUBE-MARK-MASQ`},
		{"foreign rule that drops", func(w *world) { w.insert("filter", "INPUT", "-p tcp -m tcp --dport 80 -j DROP") },
			explain.Stops, "-t filter -A INPUT -p tcp -m tcp --dport 80 -j DROP"},
		{"foreign rule for others", func(w *world) { w.insert("filter", "INPUT", "-p udp -j DROP") }, explain.Passes, ""},
		{"foreign chain", func(w *world) {
			w.insert("filter", "GUARD", "-d 10.96.0.0/16 -j REJECT --reject-with icmp-port-unreachable")
			w.insert("filter", "INPUT", "-j GUARD")
		}, explain.Stops, "-A GUARD"},
		{"foreign rule that is not understood", func(w *world) { w.insert("filter", "INPUT", "-m string --string attack -j DROP") },
			explain.Unclear, "--string attack"},
		{"foreign redirection", func(w *world) { w.insert("nat", "PREROUTING", "-p tcp --dport 80 -j DNAT --to-destination 10.9.9.9") },
			explain.Stops, "before an endpoint is selected"},
		{"policy", func(w *world) {
			w.kernel.Rules[inet.IPv4].Policies[kernel.ChainID{Table: "filter", Chain: "INPUT"}] = "DROP"
		},
			explain.Stops, "the chain policy drops it"},
		{"foreign rule on the way to the endpoints", func(w *world) { w.insert("filter", "OUTPUT", "-d 10.244.0.0/16 -j DROP") },
			explain.Stops, "packets to endpoint 10.244.0.1:8080 are stopped"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, web())
			c.damage(w)
			e := w.ask(clusterIPHTTP, outside)
			if e.Verdict != c.verdict || c.reason != "" && !says(e, c.reason) || c.reason == "" && len(e.Reasons) > 0 {
				t.Errorf("want %s because of %q, got\n%s", c.verdict, c.reason, steps(e))
			}
		})
	}
}

// TestAddressStep: the step shows how the address is bound. Without a binding, the command is right whatever the setting addresses is.
func TestAddressStep(t *testing.T) {
	addr := netip.MustParseAddrPort(clusterIPHTTP).Addr()
	for want, damage := range map[string]func(*world){
		"ip addr 10.96.0.1/32 dev kube-ipvs0\n": func(*world) {},
		"ip route local 10.96.0.1/32 dev kube-ipvs0 table local proto 117\n": func(w *world) {
			w.kernel.Addresses[addr] = kernel.Routed
		},
		"ip route get 10.96.0.1\n": func(w *world) { delete(w.kernel.Addresses, addr) },
	} {
		w := newWorld(t, web())
		damage(w)
		if got := steps(w.ask(clusterIPHTTP, outside)); !strings.Contains(got, want) {
			t.Errorf("want %q, got\n%s", want, got)
		}
	}
}

// TestAffinity: a persistence template binds only its own client to an endpoint, and only while the endpoint accepts
// connections.
func TestAffinity(t *testing.T) {
	s := web()
	s.AffinityTimeout = time.Hour
	s.Balancing.ClientBits4 = 24
	w := newWorld(t, s)
	w.kernel.Connections = []kernel.Connection{{
		Protocol: "TCP", Client: netip.MustParseAddrPort("198.51.100.0:0"), Virtual: netip.MustParseAddrPort(clusterIPHTTP),
		Destination: netip.MustParseAddrPort(otherPod + ":8080"), State: "NONE", Expires: 3000,
	}}
	for from, want := range map[string]int{outside: 1, "198.51.101.7": 2, "": 2} {
		if e := w.ask(clusterIPHTTP, from); len(e.Endpoints) != want || !strings.Contains(steps(e), "affinity") {
			t.Errorf("from %q: want %d endpoints, got\n%s", from, want, steps(e))
		}
	}
	key := kernel.ServerKey{Addr: netip.MustParseAddrPort(clusterIPHTTP), Protocol: inet.TCP}
	w.kernel.Servers[key].Destinations[1].Weight = 0
	if e := w.ask(clusterIPHTTP, outside); len(e.Endpoints) != 1 || e.Endpoints[0].Address.Addr().String() != pod {
		t.Errorf("the client's endpoint accepts no connections, but explain lists %v\n%s", e.Endpoints, steps(e))
	}
}

// TestWithoutAgent: if no agent responds, explain derives the path from the kernel alone and reports what is unknown.
func TestWithoutAgent(t *testing.T) {
	w := newWorld(t, web())
	base := w.view.Base.JumpsOnly()
	e := explain.Explain(w.kernel, nil, base, question(clusterIPHTTP, outside))
	if e.Verdict != explain.Passes || len(e.Endpoints) != 2 || !says(e, "the agent does not respond") ||
		!strings.Contains(steps(e), "in KIPVS-4-CLUSTER-IP, KIPVS-4-LEDGER, KIPVS-4-VIP") {
		t.Error(steps(e))
	}
	e = explain.Explain(w.kernel, nil, base, question(clusterIP+":81", outside))
	if e.Verdict != explain.Stops || !says(e, "unserved port") {
		t.Error(steps(e))
	}
}

// TestInactive: if no agent is active, explain reports this only once, and does not report another proxy's Services as
// broken.
func TestInactive(t *testing.T) {
	w := newWorld(t, web())
	base := w.view.Base.JumpsOnly()
	proxied := w.kernel
	prerouting := kernel.ChainID{Table: "nat", Chain: "PREROUTING"}
	redirection := iptables.ParseRule(prerouting, "-d 192.0.2.1/32 -p tcp --dport 30080 -j DNAT --to-destination 10.244.0.1:8080")
	proxied.Rules = map[inet.Family]kernel.RuleListing{
		inet.IPv4: {Rules: map[kernel.ChainID][]kernel.SavedRule{prerouting: {redirection}}},
	}
	proxied.Sets, proxied.Members, proxied.State.Rules = nil, nil, nil
	clear(proxied.Sysctls)
	e := explain.Explain(proxied, nil, base, question(clusterIPHTTP, outside))
	if e.Verdict != explain.Passes || len(e.Endpoints) != 2 || len(e.Reasons) != 1 || !says(e, "kube-ipvs is not active on this node") {
		t.Errorf("wrong explanation beside a kube-proxy in ipvs mode:\n%s", steps(e))
	}
	clear(proxied.Addresses)
	clear(proxied.Servers)
	proxied.Device = false
	for place, why := range map[string]string{clusterIPHTTP: "", node + ":30080": "redirected before an endpoint is selected", node + ":30081": ""} {
		e := explain.Explain(proxied, nil, base, question(place, outside))
		if e.Verdict != explain.Unknown || !says(e, "kube-ipvs is not active on this node") || !says(e, why) {
			t.Errorf("wrong explanation of %s beside a kube-proxy in another mode:\n%s", place, steps(e))
		}
	}
	if e = explain.Explain(proxied, &view.View{}, base, question(clusterIPHTTP, outside)); e.Verdict != explain.Stops {
		t.Errorf("wrong explanation if an agent responds but has no objects in the kernel:\n%s", steps(e))
	}
	proxied.Unread = map[explain.Part]explain.Unread{explain.Sets: {Why: "only root may"}}
	e = explain.Explain(proxied, nil, base, question(clusterIPHTTP, outside))
	if e.Verdict != explain.Unknown || says(e, "kube-ipvs is not active") || !says(e, "only root may") {
		t.Errorf("wrong explanation if the sets are unreadable, so the agent may or may not be active:\n%s", steps(e))
	}
}

// TestClosest: the rules in the kernel show whether the agent runs beside another proxy.
func TestClosest(t *testing.T) {
	baseOf := func(beside bool) (want.Base, view.Base) {
		cfg := compiletest.Config()
		cfg.SideBySide = beside
		b := compile.Base(cfg)
		return b, view.BaseOf(b, cfg.MasqueradeBit).JumpsOnly()
	}
	alone, asAlone := baseOf(false)
	beside, asBeside := baseOf(true)
	for name, c := range map[string]struct {
		there []kernel.Ruleset
		want  view.Base
	}{"alone": {alone.Rulesets, asAlone}, "beside": {beside.Rulesets, asBeside}, "none": {nil, asAlone}} {
		k := explain.Kernel{State: &kernel.State{Rules: map[inet.Family]kernel.RulesView{}}}
		for _, r := range c.there {
			k.State.Rules[r.Family] = r.View()
		}
		if d := cmp.Diff(c.want, k.Closest(asAlone, asBeside)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestConflict(t *testing.T) {
	late := compiletest.Service("late", clusterIP, "10.244.0.9")
	late.Created = late.Created.Add(time.Hour)
	w := newWorld(t, web(), late)
	if e := w.ask(clusterIPHTTP, outside); e.Service != "default/web" || e.Verdict != explain.Passes {
		t.Error(steps(e))
	}
	// A query for the losing Service does not return the verdict of the owner.
	w.view.Services = slices.DeleteFunc(w.view.Services, func(s view.Service) bool { return s.Name == "web" })
	if e := w.ask(clusterIPHTTP, outside); e.Service != "default/late" || e.Owner != "default/web" || e.Verdict != explain.Stops ||
		!says(e, "Service default/late is not served at this frontend") {
		t.Error(steps(e))
	}
}

func TestNoMatchingEndpoint(t *testing.T) {
	for want, change := range map[string]func(*model.EndpointSlice){
		"2 endpoints are ready, but none has a port http/tcp; the ports of the EndpointSlices are web/tcp":  func(s *model.EndpointSlice) { s.Ports[0].Name = "web" },
		"2 endpoints are ready, but none has a port http/tcp; the ports of the EndpointSlices are http/udp": func(s *model.EndpointSlice) { s.Ports[0].Protocol = inet.UDP },
		"2 endpoints are ready, but the EndpointSlices have no ports":                                       func(s *model.EndpointSlice) { s.Ports = nil },
		"2 endpoints are ready, but none has an IPv4 address":                                               func(s *model.EndpointSlice) { s.Family = inet.IPv6 },
	} {
		s := web()
		change(s.Slices[0])
		if e := newWorld(t, s).ask(clusterIPHTTP, node); e.Verdict != explain.Stops || !says(e, want) {
			t.Errorf("want %q:\n%s", want, steps(e))
		}
	}
}

func TestParseQuery(t *testing.T) {
	for text, want := range map[string]string{
		"10.96.0.1:80":           "10.96.0.1:80 0 / ",
		"10.96.0.1:53/udp":       "10.96.0.1:53 17 / ",
		"10.96.0.1:53/SCTP":      "10.96.0.1:53 132 / ",
		"[fd00::1]:53/udp":       "[fd00::1]:53 17 / ",
		"[::ffff:10.0.0.1]:80":   "10.0.0.1:80 0 / ",
		"default/web":            "invalid AddrPort 0 default/web ",
		"default/web:http":       "invalid AddrPort 0 default/web http",
		"default/web:80":         "invalid AddrPort 0 default/web 80",
		"10.96.0.1":              "error",
		"10.96.0.1:80/icmp":      "error",
		"web":                    "error",
		"a/b/c":                  "error",
		"default/":               "error",
		"":                       "error",
		"10.96.0.1:99999":        "error",
		"10.96.0.1:80/tcp/again": "error",
	} {
		q, err := explain.ParseQuery(text)
		got := strings.Join([]string{q.Addr.String(), protocolNumber(q.Protocol), q.Service.String(), q.Port}, " ")
		if err != nil {
			if got = "error"; !strings.Contains(err.Error(), "NAMESPACE/NAME") {
				t.Errorf("%q: the error lacks the valid forms: %v", text, err)
			}
		}
		if got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

func protocolNumber(p inet.Protocol) string {
	if p == 0 {
		return "0"
	}
	return map[inet.Protocol]string{inet.TCP: "6", inet.UDP: "17", inet.SCTP: "132"}[p]
}

func TestKeys(t *testing.T) {
	w := newWorld(t, web())
	for text, want := range map[string]int{
		"default/web": 3, "default/web:http": 3, "default/web:80": 2, "default/web:30080": 1, clusterIPHTTP: 1,
	} {
		q, err := explain.ParseQuery(text)
		if err != nil {
			t.Fatal(err)
		}
		keys, err := q.Keys(w.kernel, w.view)
		if err != nil || len(keys) != want {
			t.Errorf("%s: %v, %v; want %d frontends", text, keys, err, want)
		}
	}
	for text, want := range map[string]string{"default/none": "serves no Service default/none", "default/web:dns": `no port "dns"; its ports are http`} {
		q, _ := explain.ParseQuery(text)
		if _, err := q.Keys(w.kernel, w.view); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", text, err, want)
		}
		if _, err := q.Keys(w.kernel, nil); err == nil || !strings.Contains(err.Error(), "does not respond") {
			t.Errorf("%s: the error without an agent is %v", text, err)
		}
	}
}

// A Service port whose name is not in the EndpointSlices has no endpoints, although the pods are ready.
func TestPortNameWithoutEndpoints(t *testing.T) {
	svc := compiletest.Service("web", "10.96.0.1", "10.244.0.1")
	svc.Slices[0].Ports[0].Name = "web"
	e := newWorld(t, svc).ask("10.96.0.1:80", "10.244.0.9")
	const want = "1 endpoint is ready, but none has a port http/tcp; the ports of the EndpointSlices are web/tcp"
	if e.Verdict != explain.Stops || !says(e, want) {
		t.Errorf("verdict %s, reasons %q, want the reason %q", e.Verdict, e.Reasons, want)
	}
}

// TestNodeReachesItself: packets from the node to its own endpoint arrive on interface lo, where firewalls accept
// everything.
func TestNodeReachesItself(t *testing.T) {
	w := newWorld(t, compiletest.Service("kubernetes", "10.96.0.1", "192.0.2.1"))
	w.insert("filter", "INPUT", "-j DROP")
	if e := w.ask("10.96.0.1:80", "10.96.0.1"); e.Verdict != explain.Stops {
		t.Errorf("a rule drops every packet, but explain reports no stop:\n%s", steps(e))
	}
	w.insert("filter", "INPUT", "-i lo -j ACCEPT")
	if e := w.ask("10.96.0.1:80", "10.96.0.1"); e.Verdict == explain.Stops {
		t.Errorf("a rule accepts packets on lo, but explain reports a stop:\n%s", steps(e))
	}
}

// TestOtherChains: chains below the IP layer, which explain does not read, may stop an arriving packet.
func TestOtherChains(t *testing.T) {
	w := newWorld(t, web())
	chain := kernel.BaseChain{Family: "netdev", Table: "guard", Name: "in", Hook: kernel.HookOther, Rules: 1}
	w.kernel.Chains = append(w.kernel.Chains, chain)
	if e := w.ask(clusterIPHTTP, outside); e.Verdict != explain.Unclear || !says(e, "nft list chain netdev guard in") {
		t.Errorf("want an unclear verdict for a client outside the node, got\n%s", steps(e))
	}
	if e := w.ask(clusterIPHTTP, node); e.Verdict != explain.Passes {
		t.Errorf("want a packet from the node to pass, got\n%s", steps(e))
	}
}
