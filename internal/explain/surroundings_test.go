package explain_test

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
)

// TestInterfaces: rules that match the incoming interface use the given interface, or the interface of the route to the
// client.
func TestInterfaces(t *testing.T) {
	for _, c := range []struct {
		name, rule, chain, from, via, given string
		verdict                             explain.Verdict
	}{
		{"another interface", "-i eth1 -j DROP", "INPUT", outside, "eth0", "", explain.Passes},
		{"this interface", "-i eth0 -j DROP", "INPUT", outside, "eth0", "", explain.Stops},
		{"wildcard", "-i eth+ -j DROP", "INPUT", outside, "eth0", "", explain.Stops},
		{"another wildcard", "-i veth+ -j DROP", "INPUT", outside, "eth0", "", explain.Passes},
		{"negated", "! -i eth0 -j DROP", "INPUT", outside, "eth0", "", explain.Passes},
		{"given", "-i eth1 -j DROP", "INPUT", outside, "eth0", "eth1", explain.Stops},
		{"given, any client", "-i eth1 -j DROP", "INPUT", "", "", "eth1", explain.Stops},
		{"unknown", "-i eth0 -j DROP", "INPUT", outside, "", "", explain.Depends},
		{"packet from the node", "-i eth0 -j DROP", "INPUT", node, "eth0", "", explain.Passes},
		{"to the endpoints", "-o cni0 -j DROP", "OUTPUT", outside, "eth0", "", explain.Stops},
		{"to another interface", "-o eth0 -j DROP", "OUTPUT", outside, "eth0", "", explain.Passes},
		{"no incoming interface", "-i eth0 -j DROP", "OUTPUT", outside, "eth0", "", explain.Passes},
		{"no incoming interface, any client", "-i eth0 -j DROP", "OUTPUT", "", "", "", explain.Passes},
		{"no incoming interface, negated", "! -i eth0 -j DROP", "OUTPUT", outside, "eth0", "", explain.Stops},
		{"no outgoing interface", "-o cni0 -j DROP", "INPUT", outside, "eth0", "", explain.Passes},
		{"no outgoing interface, negated", "! -o cni0 -j DROP", "INPUT", outside, "eth0", "", explain.Stops},
		{"packet from the node, no outgoing interface", "! -o lo -j DROP", "INPUT", node, "eth0", "", explain.Stops},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, web())
			w.insert("filter", c.chain, c.rule)
			w.kernel.Routes = map[netip.Addr]kernel.Route{netip.MustParseAddr(pod): {Interface: "cni0"}, netip.MustParseAddr(otherPod): {Interface: "cni0"}}
			if c.via != "" {
				w.kernel.Routes[netip.MustParseAddr(c.from)] = kernel.Route{Interface: c.via}
			}
			q := question(clusterIPHTTP, c.from)
			q.Interface = c.given
			if e := explain.Explain(w.kernel, w.view, w.view.Base, q); e.Verdict != c.verdict {
				t.Errorf("want %s, got\n%s", c.verdict, steps(e))
			}
		})
	}
}

// TestSharedChain: INPUT and OUTPUT call the same chain, which accepts packets from pods. In OUTPUT, the packets that IPVS sends on have no
// incoming interface, so the policy drops them.
func TestSharedChain(t *testing.T) {
	output := kernel.ChainID{Table: "filter", Chain: "OUTPUT"}
	for rule, want := range map[string]explain.Verdict{"-i cni0 -j ACCEPT": explain.Stops, "-s 10.244.0.0/16 -j ACCEPT": explain.Passes} {
		w := newWorld(t, web())
		w.ways("cni0")
		w.kernel.Rules[inet.IPv4].Policies[output] = "DROP"
		w.insert("filter", "PODS", rule)
		w.insert("filter", "INPUT", "-j PODS")
		w.insert("filter", "OUTPUT", "-j PODS")
		if e := w.ask(clusterIPHTTP, somePod); e.Verdict != want || want == explain.Stops && !says(e, "-P OUTPUT DROP") {
			t.Errorf("%s: want %s, got\n%s", rule, want, steps(e))
		}
	}
}

// TestRoutes: a route can stop the packet, whatever the firewall rules are. Routes that could not be looked up do not
// affect the verdict.
func TestRoutes(t *testing.T) {
	at := netip.MustParseAddr(clusterIP)
	local, away, dropped := kernel.Route{Interface: "lo", Local: true}, kernel.Route{Interface: "eth0"}, kernel.Route{Failure: "a blackhole route"}
	for name, c := range map[string]struct {
		from             string
		arrival, sending kernel.Route
		endpoint         kernel.Route
		verdict          explain.Verdict
		reason           string
	}{
		"local":                            {outside, local, away, away, explain.Passes, ""},
		"a pod, forwarded":                 {pod, away, local, away, explain.Stops, "instead of delivering them here"},
		"a pod, dropped":                   {pod, dropped, local, away, explain.Stops, "a blackhole route"},
		"the node, forwarded":              {node, local, away, away, explain.Passes, ""},
		"the node, dropped":                {node, local, dropped, away, explain.Stops, "a blackhole route"},
		"any client":                       {"", dropped, dropped, away, explain.Passes, ""},
		"no route to one of two endpoints": {outside, local, local, dropped, explain.Partly, "packets to endpoint"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, web())
			q := question(clusterIPHTTP, c.from)
			w.kernel.Routes = map[netip.Addr]kernel.Route{at: c.sending, netip.MustParseAddr(pod): c.endpoint, netip.MustParseAddr(otherPod): away}
			w.kernel.Arrivals = map[explain.Arrival]kernel.Route{{From: q.From, To: at}: c.arrival}
			e := explain.Explain(w.kernel, w.view, w.view.Base, q)
			if e.Verdict != c.verdict || !strings.Contains(strings.Join(e.Reasons, "; "), c.reason) {
				t.Errorf("want %s because of %q, got\n%s", c.verdict, c.reason, steps(e))
			}
			w.kernel.Routes, w.kernel.Arrivals = nil, nil
			if e := explain.Explain(w.kernel, w.view, w.view.Base, q); e.Verdict != explain.Passes {
				t.Errorf("unknown routes affect the verdict:\n%s", steps(e))
			}
		})
	}
}

// TestRoutesOfReplies: the kernel drops the replies of one of two endpoints to a client. On a node without a route to the client, the verdict
// does not depend on replies.
func TestRoutesOfReplies(t *testing.T) {
	const from = "10.244.9.9" // a pod, so not masqueraded
	at, client := netip.MustParseAddr(clusterIP), netip.MustParseAddr(from)
	for away, want := range map[kernel.Route]explain.Verdict{{Interface: "eth0"}: explain.Partly, {Failure: "network is unreachable"}: explain.Passes} {
		w := newWorld(t, web())
		w.kernel.Routes = map[netip.Addr]kernel.Route{
			at: {Local: true}, client: away, netip.MustParseAddr(pod): {Interface: "cni0"}, netip.MustParseAddr(otherPod): {Interface: "eth0"},
		}
		w.kernel.Arrivals = map[explain.Arrival]kernel.Route{
			{From: client, To: at}: {Local: true}, {From: netip.MustParseAddr(pod), To: client}: {Failure: "a blackhole route"},
		}
		if e := w.ask(clusterIPHTTP, from); e.Verdict != want || want == explain.Partly && !says(e, "replies of endpoint "+pod) {
			t.Errorf("want %s, got\n%s", want, steps(e))
		}
	}
}

// TestMarkedRoutes: a routing rule for a mark applies to packets that firewall rules have marked.
func TestMarkedRoutes(t *testing.T) {
	local := kernel.Route{Interface: "lo", Local: true}
	for name, c := range map[string]struct {
		rule    string
		mask    uint32
		verdict explain.Verdict
	}{
		"marked":         {"-j MARK --set-xmark 0x5/0xffffffff", 0xf, explain.Stops},
		"another mark":   {"-j MARK --set-xmark 0x6/0xffffffff", 0xf, explain.Passes},
		"other bits":     {"-j MARK --set-xmark 0x15/0xffffffff", 0xf, explain.Stops},
		"whole mark":     {"-j MARK --set-xmark 0x15/0xffffffff", 0xffffffff, explain.Passes},
		"marks some":     {"-m hashlimit --hashlimit-upto 1/sec --hashlimit-name x -j MARK --set-xmark 0x5/0xffffffff", 0xf, explain.Unclear},
		"another packet": {"-s 192.0.2.200 -j MARK --set-xmark 0x5/0xffffffff", 0xf, explain.Passes},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, web())
			w.insert("mangle", "PREROUTING", c.rule)
			q := question(clusterIPHTTP, outside)
			at := netip.MustParseAddr(clusterIP)
			w.kernel.Marks = []kernel.MarkRule{{Mark: 5, Mask: c.mask}}
			w.kernel.Arrivals = map[explain.Arrival]kernel.Route{{From: q.From, To: at}: local, {From: q.From, To: at, Mark: 5}: {Interface: "eth1"}}
			if e := explain.Explain(w.kernel, w.view, w.view.Base, q); e.Verdict != c.verdict {
				t.Errorf("want %s, got\n%s", c.verdict, steps(e))
			}
		})
	}
}

// TestBridge: IPVS cannot translate a reply that stays on a bridge, unless netfilter processes the bridge's packets.
func TestBridge(t *testing.T) {
	const client = "10.244.0.50"
	for _, c := range []struct {
		name, from   string
		clientOn     string
		bothOnBridge bool
		filtered     bool
		verdict      explain.Verdict
	}{
		{"both endpoints on the client's bridge", client, "cni0", true, false, explain.Stops},
		{"one of two endpoints", client, "cni0", false, false, explain.Partly},
		{"netfilter sees the bridge", client, "cni0", true, true, explain.Passes},
		{"a client on another bridge", client, "br1", true, false, explain.Passes},
		{"a client outside", outside, "eth0", true, false, explain.Passes},
		{"any client", "", "", true, false, explain.Depends},
		{"the node itself", node, "", true, false, explain.Passes},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, web())
			w.kernel.Routes = map[netip.Addr]kernel.Route{netip.MustParseAddr(pod): {Interface: "cni0"}, netip.MustParseAddr(otherPod): {Interface: "eth0"}}
			if c.bothOnBridge {
				w.kernel.Routes[netip.MustParseAddr(otherPod)] = kernel.Route{Interface: "cni0"}
			}
			if c.clientOn != "" {
				w.kernel.Routes[netip.MustParseAddr(c.from)] = kernel.Route{Interface: c.clientOn}
			}
			w.kernel.Bridges = []kernel.Bridge{{Name: "br1"}, {Name: "cni0", Filtered: map[inet.Family]bool{inet.IPv4: c.filtered}}}
			e := explain.Explain(w.kernel, w.view, w.view.Base, question(clusterIPHTTP, c.from))
			if e.Verdict != c.verdict || strings.Contains(steps(e), "modprobe br_netfilter") != (c.verdict != explain.Passes) {
				t.Errorf("want %s, got\n%s", c.verdict, steps(e))
			}
		})
	}
}

// TestInterfaceOfTheNodeItself: packets that the node sends have no incoming interface, so --interface has no effect.
func TestInterfaceOfTheNodeItself(t *testing.T) {
	w := newWorld(t, web())
	q := question(clusterIPHTTP, node)
	q.Interface = "eth0"
	if e := explain.Explain(w.kernel, w.view, w.view.Base, q); !strings.Contains(steps(e), "--interface has no effect") {
		t.Error(steps(e))
	}
}

// TestLegacyRules: packets also pass the rules of iptables-legacy. No path is clear if these rules are unknown.
func TestLegacyRules(t *testing.T) {
	input, before := kernel.ChainID{Table: "filter", Chain: "INPUT"}, kernel.ChainID{Table: "raw", Chain: "PREROUTING"}
	for _, c := range []struct {
		name    string
		at      kernel.ChainID
		policy  string
		rules   []string
		verdict explain.Verdict
	}{
		{"a rule", input, "ACCEPT", []string{"-p tcp --dport 80 -j DROP"}, explain.Stops},
		{"another port", input, "ACCEPT", []string{"-p tcp --dport 81 -j DROP"}, explain.Passes},
		{"policy", input, "DROP", nil, explain.Stops},
		{"policy and an exception", input, "DROP", []string{"-d 10.96.0.0/16 -j ACCEPT"}, explain.Passes},
		{"raw", before, "ACCEPT", []string{"-d 10.96.0.0/16 -j DROP"}, explain.Stops},
		{"unknown match", input, "ACCEPT", []string{"-m geoip --source-country X -j DROP"}, explain.Unclear},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, web())
			l := kernel.RuleListing{Policies: map[kernel.ChainID]string{c.at: c.policy}, Rules: map[kernel.ChainID][]kernel.SavedRule{}}
			for _, rule := range c.rules {
				l.Rules[c.at] = append(l.Rules[c.at], iptables.ParseRule(c.at, rule))
			}
			w.kernel.Legacy = map[inet.Family]kernel.RuleListing{inet.IPv4: l}
			e := w.ask(clusterIPHTTP, outside)
			if e.Verdict != c.verdict || c.verdict == explain.Stops && !says(e, "stopped in iptables-legacy "+c.at.Table) {
				t.Errorf("want %s, got\n%s", c.verdict, steps(e))
			}
		})
	}
	w := newWorld(t, web())
	w.kernel.Unread = map[explain.Part]explain.Unread{explain.Legacy: {Why: "iptables-legacy-save: no answer"}}
	if e := w.ask(clusterIPHTTP, outside); e.Verdict != explain.Unclear {
		t.Errorf("want an unclear verdict if the rules of iptables-legacy are unread, got\n%s", steps(e))
	}
}

func TestReplyOfTheNodeToItself(t *testing.T) {
	for rule, verdict := range map[string]explain.Verdict{
		"-i lo -p tcp --sport 8080 -j DROP": explain.Stops, "! -i lo -p tcp --sport 8080 -j DROP": explain.Passes,
	} {
		for _, chain := range []string{"PREROUTING", "INPUT"} {
			w := newWorld(t, web())
			w.kernel.NodeAddresses = append(w.kernel.NodeAddresses, netip.MustParseAddr(pod), netip.MustParseAddr(otherPod))
			w.insert("mangle", chain, rule)
			if e := w.ask(clusterIPHTTP, node); e.Verdict != verdict {
				t.Errorf("%s %s: want %s, got\n%s", chain, rule, verdict, steps(e))
			}
		}
	}
}

// TestLargeSets: a search in a set allocates no memory per element.
func TestLargeSets(t *testing.T) {
	const elements = 50_000
	w := newWorld(t, web())
	chain := kernel.NFTName{Family: "inet", Table: "guard", Name: "in"}
	w.kernel.Chains = []kernel.BaseChain{{Family: chain.Family, Table: chain.Table, Name: chain.Name, Kind: "filter", Hook: kernel.HookInput, Rules: 1}}
	set := kernel.NFTSet{Fields: []int{4}}
	for i := range uint32(elements) {
		key := binary.BigEndian.AppendUint32(nil, 1<<24+2*i)
		set.Elements = append(set.Elements, kernel.NFTElement{Key: key, End: key})
	}
	w.kernel.NFTables = kernel.NFTables{
		Rules: map[kernel.NFTName][]kernel.NFTRule{chain: {{Statements: []kernel.NFTStatement{
			kernel.NFTLoad{To: 1, Field: kernel.NFTField{Kind: kernel.NFTPayload, Key: 1, Offset: 12, Length: 4}},
			kernel.NFTLookup{Set: "blocked", From: 1, To: -1}, kernel.NFTVerdict{Code: kernel.NFTDrop},
		}}}},
		Sets: map[kernel.NFTName]kernel.NFTSet{chain.In("blocked"): set},
	}
	if e := w.ask(clusterIPHTTP, outside); e.Verdict != explain.Passes {
		t.Fatal(steps(e))
	}
	if got := testing.AllocsPerRun(3, func() { w.ask(clusterIPHTTP, outside) }); got > elements/10 {
		t.Errorf("explain allocates %.0f times for a set of %d elements", got, elements)
	}
}

// TestRaw: rules in table raw stop packets, or disable the tracking that masquerading requires.
func TestRaw(t *testing.T) {
	for _, c := range []struct {
		name, chain, rule, from string
		verdict                 explain.Verdict
		reason, sees            string
	}{
		{"drop", "PREROUTING", "-p tcp --dport 80 -j DROP", outside, explain.Stops, "stopped in raw PREROUTING", ""},
		{"drop, packet from the node", "OUTPUT", "-d 10.96.0.0/16 -j DROP", node, explain.Stops, "stopped in raw OUTPUT", ""},
		{"drop in another chain, packet from the node", "PREROUTING", "-d 10.96.0.0/16 -j DROP", node, explain.Passes, "", someNode},
		{"drop of replies, packet from the node", "PREROUTING", "-j DROP", node, explain.Stops, "replies of endpoint 10.244.0.1:8080 are stopped", ""},
		{"no tracking", "PREROUTING", "-j NOTRACK", outside, explain.Depends, "disables connection tracking", client},
		{"no tracking, target CT", "PREROUTING", "-j CT --notrack", outside, explain.Depends, "disables connection tracking", client},
		{"zone", "PREROUTING", "-j CT --zone 5", outside, explain.Passes, "", someNode},
		{"no tracking for others", "PREROUTING", "-p udp -j NOTRACK", outside, explain.Passes, "", someNode},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, web())
			w.insert("raw", c.chain, c.rule)
			e := w.ask(clusterIPHTTP, c.from)
			if e.Verdict != c.verdict || c.reason != "" && !says(e, c.reason) {
				t.Errorf("want %s because of %q, got\n%s", c.verdict, c.reason, steps(e))
			}
			if c.sees != "" && (len(e.Endpoints) == 0 || e.Endpoints[0].Source != c.sees) {
				t.Errorf("want the endpoints to see %s, got\n%s", c.sees, steps(e))
			}
		})
	}
}

// TestChainsOfNFTables: explain names only the chains on the packet's path whose rules it does not evaluate.
func TestChainsOfNFTables(t *testing.T) {
	chain := func(family string, hook kernel.Hook, priority int32, rules uint32, drops bool) kernel.BaseChain {
		return kernel.BaseChain{Family: family, Table: "guard", Name: "c", Hook: hook, Priority: priority, Rules: rules, Drops: drops}
	}
	const named = "explain does not evaluate them: nft list chain"
	for _, c := range []struct {
		name    string
		chain   kernel.BaseChain
		from    string
		verdict explain.Verdict
		reason  string
	}{
		{"rules", chain("inet", kernel.HookInput, 0, 3, false), outside, explain.Unclear, named},
		{"rules before IPVS", chain("ip", kernel.HookPrerouting, -300, 1, true), outside, explain.Unclear, named},
		{"rules after IPVS", chain("inet", kernel.HookInput, 98, 3, true), outside, explain.Passes, ""},
		{"rules on the way to endpoints", chain("inet", kernel.HookPostrouting, 0, 1, false), outside, explain.Unclear, named},
		{"rules for received packets, packet from the node", chain("inet", kernel.HookInput, 0, 3, false), node, explain.Unclear, "may stop the reply"},
		{"rules for forwarded packets, packet from the node", chain("inet", kernel.HookForward, 0, 3, false), node, explain.Passes, ""},
		{"rules for forwarded packets", chain("inet", kernel.HookForward, 0, 3, false), outside, explain.Unclear, "may stop the reply"},
		{"rules before IPVS, packet from the node", chain("inet", kernel.HookOutput, -150, 3, false), node, explain.Unclear, named},
		{"no rules", chain("inet", kernel.HookInput, 0, 0, false), outside, explain.Passes, ""},
		{"no rules, policy drop", chain("inet", kernel.HookInput, 0, 0, true), outside, explain.Stops, "its policy drops everything"},
		{"another family", chain("ip6", kernel.HookInput, 0, 0, true), outside, explain.Passes, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, web())
			w.kernel.Chains = []kernel.BaseChain{c.chain}
			if e := w.ask(clusterIPHTTP, c.from); e.Verdict != c.verdict || c.reason != "" && !says(e, c.reason) || c.reason == "" && len(e.Reasons) > 0 {
				t.Errorf("want %s because of %q, got\n%s", c.verdict, c.reason, steps(e))
			}
		})
	}
}

// TestExistingConnection: an existing connection continues to its endpoint even if the endpoint receives no new
// connections.
func TestExistingConnection(t *testing.T) {
	newWorldWith := func(state, destination string) *world {
		w := newWorld(t, web())
		w.kernel.Connections = []kernel.Connection{{
			Protocol: "TCP", Client: netip.MustParseAddrPort(outside + ":4711"), Virtual: netip.MustParseAddrPort(clusterIPHTTP),
			Destination: netip.MustParseAddrPort(destination), State: state, Expires: 899,
		}}
		key := kernel.ServerKey{Addr: netip.MustParseAddrPort(clusterIPHTTP), Protocol: inet.TCP}
		w.kernel.Servers[key].Destinations[0].Weight = 0
		return w
	}
	for _, c := range []struct {
		name, state, destination string
		port                     uint16
		want                     []string // endpoints
		says                     string
	}{
		{"the connection", "ESTABLISHED", pod + ":8080", 4711, []string{pod}, "IPVS tracks this connection"},
		{"another port", "ESTABLISHED", pod + ":8080", 4712, []string{otherPod}, "no connection from this port"},
		{"no port", "ESTABLISHED", pod + ":8080", 0, []string{otherPod}, "open connections of this client continue to 10.244.0.1:8080"},
		{"ended", "TIME_WAIT", pod + ":8080", 4711, []string{otherPod}, "IPVS schedules a new connection"},
		{"endpoint gone", "ESTABLISHED", "10.244.0.9:8080", 4711, nil, "is no longer a destination of -t 10.96.0.1:80"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorldWith(c.state, c.destination)
			q := question(clusterIPHTTP, outside)
			q.FromPort = c.port
			e := explain.Explain(w.kernel, w.view, w.view.Base, q)
			var got []string
			for _, o := range e.Endpoints {
				got = append(got, o.Address.Addr().String())
			}
			if strings.Join(got, " ") != strings.Join(c.want, " ") || !strings.Contains(steps(e), c.says) {
				t.Errorf("want %v and %q, got\n%s", c.want, c.says, steps(e))
			}
		})
	}
}

// TestUnread: explain names a part that could not be read, and its verdict is unknown or unclear. A kernel without IPVS
// has a certain verdict.
func TestUnread(t *testing.T) {
	for part, want := range map[explain.Part]explain.Verdict{
		explain.Addresses: explain.Unknown, explain.Sets: explain.Unknown, explain.Rules: explain.Unknown, explain.Servers: explain.Unknown,
		explain.Sysctls: explain.Unclear, explain.Chains: explain.Unclear, explain.Connections: explain.Unclear,
	} {
		s := web()
		s.AffinityTimeout = time.Hour // explain then reads the connections
		w := newWorld(t, s)
		switch part {
		case explain.Addresses:
			w.kernel.Addresses, w.kernel.NodeAddresses = nil, nil
		case explain.Sets:
			w.kernel.Sets, w.kernel.Members = nil, nil
		case explain.Rules:
			w.kernel.Rules, w.kernel.State.Rules = nil, nil
		case explain.Servers:
			w.kernel.Servers = nil
		case explain.Sysctls:
			w.kernel.Sysctls = nil
		}
		w.kernel.Unread = map[explain.Part]explain.Unread{part: {Why: "only root may"}}
		e := w.ask(clusterIPHTTP, outside)
		if e.Verdict != want || !says(e, string(part)) || !says(e, "only root may") || says(e, "missing") || says(e, "lacks") {
			t.Errorf("the %s could not be read: want %s, got\n%s", part, want, steps(e))
		}
	}
	w := newWorld(t, web())
	w.kernel.Servers = nil
	w.kernel.Unread = map[explain.Part]explain.Unread{explain.Servers: {Why: "the module ip_vs is not loaded", Absent: true}}
	if e := w.ask(clusterIPHTTP, outside); e.Verdict != explain.Stops || !says(e, "ip_vs is not loaded") || !strings.Contains(steps(e), "modprobe ip_vs") {
		t.Errorf("wrong explanation for a kernel without IPVS:\n%s", steps(e))
	}
}
