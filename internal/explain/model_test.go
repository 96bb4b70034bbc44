package explain_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
)

// visit is one packet of a connection in one built-in chain of the model: a client, a ClusterIP, and an endpoint on this or another node.
type visit struct {
	table, chain string
	reply        bool
	stage        string // "syn", "ack" or "data"
	sport, dport int
	source       string
}

// modelChains are the built-in chains on the way to IPVS, from IPVS to the endpoint, and back, with the tables of the model.
var modelChains = map[string][3][]string{
	"arriving": {
		{"raw PREROUTING", "mangle PREROUTING", "nat PREROUTING", "mangle INPUT", "filter INPUT"},
		{"raw OUTPUT", "mangle OUTPUT", "nat OUTPUT", "filter OUTPUT", "mangle POSTROUTING", "nat POSTROUTING"},
		{"raw PREROUTING", "mangle PREROUTING", "mangle FORWARD", "filter FORWARD", "mangle POSTROUTING"},
	},
	"sent": {
		{"raw OUTPUT", "mangle OUTPUT"},
		{"raw OUTPUT", "mangle OUTPUT", "filter OUTPUT", "mangle POSTROUTING", "nat POSTROUTING"},
		{"raw PREROUTING", "mangle PREROUTING", "mangle INPUT", "filter INPUT"},
	},
}

func visitsOf(from, endpoint string) (all []visit) {
	kind := "arriving"
	if from == node {
		kind = "sent"
	}
	const clientPort = 49_151
	for _, stage := range []string{"syn", "ack", "data"} {
		for part, chains := range modelChains[kind] {
			for _, at := range chains {
				v := visit{reply: part == 2, stage: stage, sport: clientPort, dport: 80, source: from}
				v.table, v.chain, _ = strings.Cut(at, " ")
				if part > 0 {
					v.dport = 8080
				}
				if v.reply {
					v.sport, v.dport, v.source = 8080, clientPort, endpoint
				}
				if v.table != "nat" || stage == "syn" {
					all = append(all, v)
				}
			}
		}
	}
	return all
}

// modelMatches maps the matches of the foreign rule to what they mean in the model.
var modelMatches = map[string]func(visit) bool{
	"":                                      func(visit) bool { return true },
	"-p udp":                                func(visit) bool { return false },
	"-p tcp -m tcp --dport 80":              func(v visit) bool { return v.dport == 80 },
	"-p tcp -m tcp --dport 8080":            func(v visit) bool { return v.dport == 8080 },
	"-p tcp -m tcp --sport 8080":            func(v visit) bool { return v.sport == 8080 },
	"-s " + otherPod + "/32":                func(v visit) bool { return v.source == otherPod },
	"-p tcp -m tcp --tcp-flags PSH PSH":     func(v visit) bool { return v.stage == "data" },
	"-p tcp -m tcp --tcp-flags PSH,ACK ACK": func(v visit) bool { return v.stage == "ack" || v.stage == "syn" && v.reply },
	"-p tcp -m tcp --tcp-flags SYN SYN":     func(v visit) bool { return v.stage == "syn" },
	"-m length --length 1400:65535":         func(v visit) bool { return v.stage == "data" },
	"-m length --length 0:100":              func(v visit) bool { return v.stage != "data" },
	"-m length ! --length 0:1399":           func(v visit) bool { return v.stage == "data" },
}

// modelTargets maps the tables of each target to the way in which the target breaks a connection.
var modelTargets = map[string]string{
	"-j LOG": "raw mangle nat filter", "-j DROP": "raw mangle filter", "-j TTL --ttl-set 1": "mangle", "-j TTL --ttl-set 64": "mangle",
	"-j TEE --gateway 192.0.2.9": "mangle", "-j MARK --set-xmark 0x0/0xffffffff": "mangle", "-j MARK --set-xmark 0x1/0x1": "raw mangle",
	"-j CT --zone 9": "raw", "-j CT --zone-orig 9": "raw", "-j CT --zone-reply 9": "raw",
	"-j SNAT --to-source 172.31.200.1": "nat", "-j SNAT --to-source " + node: "nat", "-j MASQUERADE": "nat", "-j ACCEPT": "nat", "-j RETURN": "nat", "-g KIPVS-NONE": "nat",
}

// modelRuleAt is a foreign rule in a built-in chain.
type modelRuleAt struct {
	table, chain, target string
	is                   func(visit) bool
}

func (r modelRuleAt) hits(v visit) bool { return v.table == r.table && v.chain == r.chain && r.is(v) }

// breaks reports whether the rule breaks the connection from a client to an endpoint.
func (r modelRuleAt) breaks(from, endpoint string) bool {
	all := visitsOf(from, endpoint)
	return slices.ContainsFunc(all, func(v visit) bool { return r.hits(v) && r.stops(v, from, endpoint) }) || r.mixesZones(all)
}

// stops reports whether the target stops the packet, or the replies.
func (r modelRuleAt) stops(v visit, from, endpoint string) bool {
	opens, far := v.stage == "syn" && !v.reply, endpoint == otherPod
	switch r.target {
	case "-j DROP", "-j TEE --gateway 192.0.2.9", "-j TTL --ttl-set 1":
		return true
	case "-j MARK --set-xmark 0x0/0xffffffff": // the agent marks new connections in PREROUTING and OUTPUT of table nat, except those from pods
		marked := v.dport == 8080 || v.chain == "INPUT"
		return opens && marked && far && from != somePod
	case "-j SNAT --to-source 172.31.200.1":
		return far
	case "-j ACCEPT", "-j RETURN", "-g KIPVS-NONE": // the packet skips the agent's rules
		return opens && far && from != somePod
	}
	return false
}

// mixesZones reports whether some packets are tracked in another zone than the first one.
func (r modelRuleAt) mixesZones(all []visit) bool {
	tracked := map[string]bool{}
	var first [2]uint16
	for _, v := range all {
		packet, way := fmt.Sprint(v.stage, v.reply), 0
		if v.table != "raw" || tracked[packet] {
			continue
		}
		tracked[packet] = true
		var zones [2]uint16 // of the original direction, and of replies
		if r.hits(v) {
			zones = map[string][2]uint16{"-j CT --zone 9": {9, 9}, "-j CT --zone-orig 9": {9, 0}, "-j CT --zone-reply 9": {0, 9}}[r.target]
		}
		if len(tracked) == 1 {
			first = zones
		}
		if v.reply {
			way = 1
		}
		if zones[way] != first[way] {
			return true
		}
	}
	return false
}

// TestForeignRulesChangeTheVerdict adds a random rule to a node on which all paths are clear. The verdict remains clear if, and only if, the
// rule does not break the connection in the model.
func TestForeignRulesChangeTheVerdict(t *testing.T) {
	matches, targets := slices.Sorted(maps.Keys(modelMatches)), slices.Sorted(maps.Keys(modelTargets))
	rapid.Check(t, func(rt *rapid.T) {
		s := web()
		s.Slices[0].Endpoints[1].Node = "node-b"
		w := newWorld(t, s)
		w.ways("cni0")
		from := rapid.SampledFrom([]string{outside, somePod, node}).Draw(rt, "from")
		target := rapid.SampledFrom(targets).Draw(rt, "target")
		table := rapid.SampledFrom(strings.Fields(modelTargets[target])).Draw(rt, "table")
		chains := map[string][]string{
			"raw": {"PREROUTING", "OUTPUT"}, "mangle": {"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}, "nat": {"POSTROUTING"},
			"filter": {"INPUT", "FORWARD", "OUTPUT"},
		}
		chain := rapid.SampledFrom(chains[table]).Draw(rt, "chain")
		match := rapid.SampledFrom(matches).Draw(rt, "match")
		w.insert(table, chain, strings.TrimSpace(match+" "+target))
		e := w.ask(clusterIPHTTP, from)
		r := modelRuleAt{table, chain, target, modelMatches[match]}
		want := slices.ContainsFunc([]string{pod, otherPod}, func(endpoint string) bool { return r.breaks(from, endpoint) })
		if clear := e.Verdict == explain.Passes && len(e.Reasons) == 0; clear == want {
			rt.Fatalf("%s %s %s %s from %s: broken in the model: %t, got\n%s", table, chain, match, target, from, want, steps(e))
		}
		if want && !slices.ContainsFunc(e.Causes, func(c explain.Cause) bool { return strings.Contains(strings.Join(c.Rules, " "), target) }) {
			rt.Fatalf("%s %s %s %s from %s: no cause has the rule:\n%s", table, chain, match, target, from, steps(e))
		}
	})
}

// TestLaterPackets: rules of nftables that stop only later packets of a connection.
func TestLaterPackets(t *testing.T) {
	load := func(kind string, key uint32, offset, length int) kernel.NFTLoad {
		return kernel.NFTLoad{To: 0, Field: kernel.NFTField{Kind: kind, Key: key, Offset: offset, Length: length}}
	}
	swap := func(length int) kernel.NFTByteOrder { return kernel.NFTByteOrder{Length: length, Size: length} }
	over := func(value ...byte) kernel.NFTCompare { return kernel.NFTCompare{Op: kernel.NFTGreater, Data: value} }
	drop := kernel.NFTVerdict{Code: kernel.NFTDrop}
	packets, length, ipLength := load(kernel.NFTCt, 14, 0, 0), load(kernel.NFTMeta, 0, 0, 0), load(kernel.NFTPayload, 1, 2, 2)
	for name, c := range map[string]struct {
		statements []kernel.NFTStatement
		verdict    explain.Verdict
		reason     string
	}{
		"ct packets > 3":      {[]kernel.NFTStatement{packets, swap(8), over(0, 0, 0, 0, 0, 0, 0, 3), drop}, explain.Stops, "data packets are stopped: ct packets > 3: dropped"},
		"ct packets > 100":    {[]kernel.NFTStatement{packets, swap(8), over(0, 0, 0, 0, 0, 0, 0, 100), drop}, explain.Unclear, "this rule may stop"},
		"ct packets == 3":     {[]kernel.NFTStatement{packets, kernel.NFTCompare{Data: []byte{3, 0, 0, 0, 0, 0, 0, 0}}, drop}, explain.Unclear, "this rule may stop"},
		"meta length > 1000":  {[]kernel.NFTStatement{length, swap(4), over(0, 0, 3, 232), drop}, explain.Stops, "data packets are stopped"},
		"ip length > 1000":    {[]kernel.NFTStatement{ipLength, over(3, 232), drop}, explain.Stops, "data packets are stopped"},
		"ip length > 9000":    {[]kernel.NFTStatement{ipLength, over(0x23, 0x28), drop}, explain.Unclear, "this rule may stop data packets"},
		"meta length > 70000": {[]kernel.NFTStatement{length, swap(4), over(0, 1, 17, 112), drop}, explain.Passes, ""},
		"tcp flags & psh == psh": {[]kernel.NFTStatement{load(kernel.NFTPayload, 2, 13, 1), kernel.NFTBitwise{Length: 1, Mask: []byte{8}, Xor: []byte{0}},
			kernel.NFTCompare{Data: []byte{8}}, drop},
			explain.Stops, "data packets are stopped"},
		"ip ttl set 1":      {ttl(1), explain.Unclear, "this rule may stop"},
		"ip ttl set 64":     {ttl(64), explain.Passes, ""},
		"meta priority set": {[]kernel.NFTStatement{kernel.NFTStore{Field: kernel.NFTField{Kind: kernel.NFTMeta, Key: 2}}}, explain.Passes, ""},
		"meta pkttype set":  {[]kernel.NFTStatement{kernel.NFTStore{Field: kernel.NFTField{Kind: kernel.NFTMeta, Key: 19}}}, explain.Unclear, "this rule may stop"},
		"ct label set":      {[]kernel.NFTStatement{kernel.NFTStore{Field: kernel.NFTField{Kind: kernel.NFTCt, Key: 13}}}, explain.Passes, ""},
		"dup to":            {[]kernel.NFTStatement{kernel.NFTAction{Name: "dup"}}, explain.Unclear, "this rule may stop"},
		"tcp option maxseg size set rt mtu": {[]kernel.NFTStatement{kernel.NFTLoad{Field: kernel.NFTField{Kind: "rt"}},
			kernel.NFTStore{Field: kernel.NFTField{Kind: "exthdr", Key: 2, Length: 2, Flags: 1}}}, explain.Passes, ""},
		"tcp option maxseg size set 60": {[]kernel.NFTStatement{kernel.NFTImmediate{Data: []byte{0, 60}},
			kernel.NFTStore{Field: kernel.NFTField{Kind: "exthdr", Key: 2, Length: 2, Flags: 1}}}, explain.Unclear, "this rule may stop"},
		"ip dscp set 8": {[]kernel.NFTStatement{load(kernel.NFTPayload, 1, 0, 2), kernel.NFTBitwise{Length: 2, Mask: []byte{0xff, 0x03}, Xor: []byte{0, 0x20}},
			kernel.NFTStore{Field: kernel.NFTField{Kind: kernel.NFTPayload, Key: 1, Length: 2}}}, explain.Passes, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, web())
			w.addNFT("filter", kernel.HookInput, 0, c.statements...)
			if e := w.ask(clusterIPHTTP, outside); e.Verdict != c.verdict || c.reason != "" && !says(e, c.reason) || c.reason == "" && len(e.Reasons) > 0 {
				t.Errorf("want %s because of %q, got\n%s", c.verdict, c.reason, steps(e))
			}
		})
	}
}

func ttl(value byte) []kernel.NFTStatement {
	field := kernel.NFTField{Kind: kernel.NFTPayload, Key: 1, Offset: 8, Length: 2}
	return []kernel.NFTStatement{
		kernel.NFTLoad{Field: field}, kernel.NFTBitwise{Length: 2, Mask: []byte{0, 0xff}, Xor: []byte{value, 0}}, kernel.NFTStore{Field: field},
	}
}

// addNFT adds a base chain with one rule.
func (w *world) addNFT(kind string, hook kernel.Hook, priority int32, statements ...kernel.NFTStatement) {
	c := kernel.BaseChain{Family: "inet", Table: "guard", Name: "c", Kind: kind, Hook: hook, Priority: priority, Rules: 1}
	w.kernel.Chains = append(w.kernel.Chains, c)
	w.kernel.NFTables = kernel.NFTables{Rules: map[kernel.NFTName][]kernel.NFTRule{c.Chain(): {{Statements: statements}}}}
}

type sourceCase struct {
	rule    func(*world)
	verdict explain.Verdict
	reason  string
	sees    string
}

func inPostrouting(spec string) func(*world) {
	return func(w *world) { w.insert("nat", "POSTROUTING", spec) }
}

func inNFTPostrouting(statements ...kernel.NFTStatement) func(*world) {
	return func(w *world) { w.addNFT("nat", kernel.HookPostrouting, 90, statements...) }
}

// TestSources: the endpoints' replies return to this node only if the connection's source is one of its addresses.
func TestSources(t *testing.T) {
	foreign := kernel.NFTImmediate{Data: []byte{172, 31, 200, 1}}
	own := kernel.NFTImmediate{Data: netip.MustParseAddr(node).AsSlice()}
	snat := kernel.NFTSourceNAT{Addresses: [2]int{0, 0}, Ports: [2]int{-1, -1}}
	checkSources(t, map[string]sourceCase{
		"another address": {inPostrouting("-p tcp -j SNAT --to-source 172.31.200.1"),
			explain.Partly, "the source address 172.31.200.1, which this node does not have; rule: -t nat -A POSTROUTING", "172.31.200.1"},
		"own address": {inPostrouting("-p tcp -j SNAT --to-source " + node), explain.Passes, "", someNode},
		"another range": {inPostrouting("-j SNAT --to-source 172.31.200.1-172.31.200.9"),
			explain.Partly, "the source address 172.31.200.1-172.31.200.9", "172.31.200.1-172.31.200.9"},
		"range with own address": {inPostrouting("-j SNAT --to-source 192.0.2.1-192.0.2.9"), explain.Unclear, "explain cannot rule out that replies", "192.0.2.1-192.0.2.9"},
		"virtual address":        {inPostrouting("-j SNAT --to-source " + balancer), explain.Partly, "the source address " + balancer, balancer},
		"some packets": {inPostrouting("-m statistic --mode random --probability 0.5 -j SNAT --to-source 172.31.200.1"),
			explain.Unclear, "explain cannot rule out that replies", someNode},
		"few ports":                 {inPostrouting("-p tcp -j MASQUERADE --to-ports 1500-1501"), explain.Unclear, "limits the number of source ports to 2", someNode},
		"many ports":                {inPostrouting("-p tcp -j MASQUERADE --to-ports 1024-65535"), explain.Passes, "", someNode},
		"nftables, another address": {inNFTPostrouting(foreign, snat), explain.Partly, "the source address 172.31.200.1", "172.31.200.1"},
		"nftables, own address":     {inNFTPostrouting(own, snat), explain.Passes, "", someNode},
		"nftables, unknown address": {inNFTPostrouting(snat), explain.Unclear, "explain cannot rule out that replies", "an unknown address"},
		"nftables, masquerade":      {inNFTPostrouting(kernel.NFTSourceNAT{Addresses: [2]int{-1, -1}, Ports: [2]int{-1, -1}, Masquerade: true}), explain.Passes, "", someNode},
	})
}

// TestLostMasquerading: foreign rules can keep the agent's rules from masquerading.
func TestLostMasquerading(t *testing.T) {
	checkSources(t, map[string]sourceCase{
		"accepted earlier": {inPostrouting("-p tcp -j ACCEPT"),
			explain.Partly, "prevents masquerading by the agent's rules; rule: -t nat -A POSTROUTING -p tcp -j ACCEPT", client},
		"returned earlier": {inPostrouting("-d " + otherPod + " -j RETURN"),
			explain.Partly, "prevents masquerading by the agent's rules; rule: -t nat -A POSTROUTING -d " + otherPod, someNode},
		"returned for some": {inPostrouting("-m statistic --mode random --probability 0.5 -j RETURN"), explain.Unclear, "POSTROUTING -m statistic", ""},
		"led to another chain": {func(w *world) {
			w.insert("nat", "MINE", "-p udp -j ACCEPT")
			w.insert("nat", "POSTROUTING", "-g MINE")
		}, explain.Partly, "prevents masquerading by the agent's rules; rule: -t nat -A POSTROUTING -g MINE", client},
		"returned to the agent's rules": {func(w *world) {
			w.insert("nat", "MINE", "-j RETURN")
			w.insert("nat", "POSTROUTING", "-j MINE")
		}, explain.Passes, "", someNode},
		"nftables, accepted earlier": {inNFTPostrouting(kernel.NFTVerdict{Code: kernel.NFTAccept}), explain.Passes, "", someNode},
		"mark cleared": {func(w *world) { w.insert("mangle", "POSTROUTING", "-j MARK --set-xmark 0x0/0xffffffff") }, explain.Partly,
			"masquerading by the agent's rules; rule: -t mangle -A POSTROUTING -j MARK", client},
		"mark restored": {func(w *world) { w.insert("mangle", "POSTROUTING", "-j CONNMARK --restore-mark") },
			explain.Partly, "rule: -t mangle -A POSTROUTING -j CONNMARK", client},
		"other bits": {func(w *world) { w.insert("mangle", "POSTROUTING", "-j MARK --set-xmark 0x0/0xff") }, explain.Passes, "", someNode},
		"mark of some packets cleared": {func(w *world) {
			w.insert("mangle", "POSTROUTING", "-m statistic --mode random --probability 0.5 -j MARK --set-xmark 0x0/0xffffffff")
		}, explain.Unclear, "explain cannot rule out that replies", ""},
		"nftables, mark cleared": {func(w *world) {
			w.addNFT("filter", kernel.HookPostrouting, 0, kernel.NFTImmediate{Data: []byte{0, 0, 0, 0}}, kernel.NFTStore{Field: kernel.NFTField{Kind: kernel.NFTMeta, Key: 3}})
		}, explain.Partly, "rule: nft -a list chain inet guard c", client},
		"zone of one endpoint's replies": {func(w *world) { w.insert("raw", "PREROUTING", "-s "+otherPod+" -j CT --zone 9") }, explain.Partly,
			"belong to no connection", someNode},
		"nftables, zone": {func(w *world) {
			w.addNFT("filter", kernel.HookPrerouting, -310, kernel.NFTLoad{Field: kernel.NFTField{Kind: kernel.NFTPayload, Key: 2, Length: 2}},
				kernel.NFTCompare{Data: []byte{0x1f, 0x90}}, kernel.NFTImmediate{Data: []byte{7, 0, 0, 0}}, kernel.NFTStore{Field: kernel.NFTField{Kind: kernel.NFTCt, Key: 17}})
		}, explain.Stops, "belong to no connection", ""},
	})
}

func checkSources(t *testing.T, cases map[string]sourceCase) {
	t.Helper()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := web()
			s.Slices[0].Endpoints[1].Node = "node-b"
			w := newWorld(t, s)
			w.ways("cni0")
			c.rule(w)
			e := w.ask(clusterIPHTTP, outside)
			if e.Verdict != c.verdict || c.reason != "" && !says(e, c.reason) || c.reason == "" && len(e.Reasons) > 0 {
				t.Errorf("want %s because of %q, got\n%s", c.verdict, c.reason, steps(e))
			}
			if c.sees != "" && (len(e.Endpoints) == 0 || e.Endpoints[0].Source != c.sees) {
				t.Errorf("want the first endpoint to see %s, got\n%s", c.sees, steps(e))
			}
		})
	}
}

// TestFamilyOfRules: a rule of ip6tables is shown with its command.
func TestFamilyOfRules(t *testing.T) {
	w := newWorld(t, everyPath()...)
	at := kernel.ChainID{Table: "filter", Chain: "INPUT"}
	rules := w.kernel.Rules[inet.IPv6].Rules
	rules[at] = append([]kernel.SavedRule{iptables.ParseRule(at, "-j DROP")}, rules[at]...)
	if e := w.ask("[fd00:10:96::1]:80", outside6); !says(e, "rule: ip6tables -t filter -A INPUT -j DROP") {
		t.Error(steps(e))
	}
}

// TestMarkServers: IPVS prefers a virtual server for the packet's mark to the Service's.
func TestMarkServers(t *testing.T) {
	for rule, verdict := range map[string]explain.Verdict{
		"-p tcp -j MARK --set-xmark 0x4d/0xffffffff":                     explain.Stops,
		"-p udp -j MARK --set-xmark 0x4d/0xffffffff":                     explain.Passes,
		"-m string --string x --algo bm -j MARK --set-xmark 0x4d/0xffff": explain.Unclear,
	} {
		w := newWorld(t, web())
		w.kernel.MarkServers = []kernel.TableServer{{Key: kernel.TableKey{Family: inet.IPv4, Mark: 77}}}
		w.insert("mangle", "PREROUTING", rule)
		if e := w.ask(clusterIPHTTP, somePod); e.Verdict != verdict || verdict != explain.Passes && !says(e, "command: ipvsadm -L -f 77; the rule that sets the mark: -t mangle") {
			t.Errorf("%s: want %s, got\n%s", rule, verdict, steps(e))
		}
	}
}
