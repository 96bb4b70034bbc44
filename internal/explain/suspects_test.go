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
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// TestSuspectsCoverEveryRule: if a foreign rule breaks some connections, Suspects returns one of them.
func TestSuspectsCoverEveryRule(t *testing.T) {
	w := newWorld(t, slices.DeleteFunc(everyKind(), func(s *model.Service) bool {
		return !slices.Contains([]string{"plain4", "ranged4", "sticky4"}, s.ID.Name)
	})...)
	client := netip.MustParseAddr(outside)
	w.kernel.Routes = map[netip.Addr]kernel.Route{client: {Interface: "eth0"}}
	servers := slices.SortedFunc(maps.Keys(w.kernel.Servers), kernel.ServerKey.Compare)
	servers = slices.DeleteFunc(servers, func(k kernel.ServerKey) bool {
		return k.Family() != inet.IPv4 || k.Addr.Port() == 0 || len(w.kernel.Servers[k].Destinations) == 0
	})
	search := explain.Search{Clients: []netip.Addr{client}, Limit: 4}
	if suspects := w.kernel.Suspects(search); len(servers) < 3 || len(suspects.Connections)+suspects.Untraced > 0 {
		t.Fatalf("without foreign rules: %+v of %d virtual servers", suspects, len(servers))
	}
	var all []explain.Question
	for _, to := range servers {
		all = append(all, explain.Question{To: to, From: to.Addr.Addr()}, explain.Question{To: to, From: client})
	}
	plain := maps.Clone(w.kernel.Rules[inet.IPv4].Rules)
	rapid.Check(t, func(t *rapid.T) {
		rules := w.kernel.Rules[inet.IPv4].Rules
		clear(rules)
		maps.Copy(rules, plain)
		for i := range rapid.IntRange(1, 4).Draw(t, "rules") {
			id := rapid.SampledFrom([]kernel.ChainID{
				{Table: "raw", Chain: "PREROUTING"}, {Table: "mangle", Chain: "INPUT"}, {Table: "filter", Chain: "INPUT"}, {Table: "mangle", Chain: "OUTPUT"},
			}).Draw(t, "chain")
			to := rapid.SampledFrom(servers).Draw(t, "server")
			spec := fmt.Sprintf("-d %s/%d", to.Addr.Addr(), rapid.IntRange(16, 32).Draw(t, "bits"))
			if rapid.Bool().Draw(t, "with port") {
				spec += fmt.Sprintf(" -p %s -m %[1]s --dport %d", to.Protocol, to.Addr.Port())
			}
			if rapid.Bool().Draw(t, "uncertain") {
				spec += " -m string --string x --algo bm"
			}
			rules[id] = append([]kernel.SavedRule{iptables.ParseRule(id, fmt.Sprintf("%s -m comment --comment n%d -j DROP", spec, i))}, rules[id]...)
		}
		suspects := w.kernel.Suspects(search).Connections
		stopped := w.stoppedBy(suspects)
		for rule, q := range w.stoppedBy(all) {
			if _, found := stopped[rule]; !found {
				t.Fatalf("rule %s breaks %v, and none of the suspects %v", rule, q, suspects)
			}
		}
	})
}

// stoppedBy maps each foreign rule that explain names to a connection that the rule breaks or may break. It identifies rules by their comments. It
// ignores replies, because Suspects does not trace them outside its sample.
func (w *world) stoppedBy(connections []explain.Question) map[string]explain.Question {
	by := map[string]explain.Question{}
	for _, q := range connections {
		for _, step := range explain.Explain(w.kernel, w.view, w.view.Base, q).Steps {
			for i := range 4 {
				name := fmt.Sprintf("--comment n%d ", i)
				if stops := step.Verdict == explain.Stops || step.Verdict == explain.Depends; stops && strings.Contains(step.Object, name) && !strings.HasPrefix(step.At, "reply") {
					by[name] = q
				}
			}
		}
	}
	return by
}

// TestSuspectsAreLimited: rules that break few connections come first, and the number of comparisons is limited.
func TestSuspectsAreLimited(t *testing.T) {
	w := newWorld(t, everyKind()...)
	rare := clusterIPOf("10.96.1.11:80")
	w.insert("filter", "OUTPUT", "-d 10.96.0.0/16 -j DROP")
	w.insert("mangle", "OUTPUT", "-d 10.96.1.11 -j DROP")
	if suspects := w.kernel.Suspects(explain.Search{Limit: 1}).Connections; len(suspects) != 1 || suspects[0] != (explain.Question{To: rare, From: rare.Addr.Addr()}) {
		t.Errorf("suspects %v, want %v", suspects, rare)
	}
	w.kernel.OtherSets = map[string]kernel.OtherSet{"large": {Elements: make([]kernel.OtherElement, 60_000_000)}}
	if suspects := w.kernel.Suspects(explain.Search{Limit: 1}); len(suspects.Connections) > 0 || suspects.Untraced == 0 {
		t.Errorf("%+v", suspects)
	}
}

func clusterIPOf(addr string) kernel.ServerKey {
	return kernel.ServerKey{Addr: netip.MustParseAddrPort(addr), Protocol: inet.TCP}
}

// TestSuspectsOfPods: in the sample, Suspects finds a rule that breaks connections of only some pods. It ignores rules of network policies.
func TestSuspectsOfPods(t *testing.T) {
	w := newWorld(t, everyKind()...)
	w.kernel.Routes = map[netip.Addr]kernel.Route{}
	var pods []netip.Addr
	for i := range 6 {
		pod := netip.AddrFrom4([4]byte{10, 244, 9, byte(i)})
		w.kernel.Routes[pod] = kernel.Route{Interface: fmt.Sprintf("cali%d", i)}
		pods = append(pods, pod)
	}
	to := clusterIPOf("10.96.1.11:80")
	for _, d := range w.kernel.Servers[to].Destinations {
		w.kernel.Routes[d.Addr.Addr()] = kernel.Route{Interface: "eth0"}
	}
	search := explain.Search{Pods: pods, Sample: []kernel.ServerKey{to}, Limit: 9}
	if s := w.kernel.Suspects(search); len(s.Connections)+len(s.Policed)+s.Untraced > 0 {
		t.Fatalf("without foreign rules: %+v", s)
	}
	w.insert("raw", "PREROUTING", "-s 10.244.9.4/31 -j DROP")
	w.insert("raw", "PREROUTING", "-i cali1 -j DROP")
	w.insert("mangle", "POSTROUTING", "-o cali2 -m string --string x --algo bm -j DROP")
	w.insert("mangle", "INPUT", "-s 10.244.9.0 -p tcp --tcp-flags PSH PSH -j DROP")
	w.insert("filter", "cali-fw-cali3", "-j DROP")
	w.insert("filter", "INPUT", "-i cali3 -j cali-fw-cali3")
	s := w.kernel.Suspects(search)
	var from []netip.Addr
	for _, q := range s.Connections {
		from = append(from, q.From)
	}
	slices.SortFunc(from, netip.Addr.Compare)
	if want := slices.Concat(pods[:3], pods[4:]); !slices.Equal(from, want) || !slices.Equal(s.Policed, pods[3:4]) || s.Untraced != 0 {
		t.Errorf("suspects from %v, want %v; %+v", from, want, s)
	}
	w.kernel.OtherSets = map[string]kernel.OtherSet{"large": {Elements: make([]kernel.OtherElement, 60_000_000)}}
	if s := w.kernel.Suspects(search); len(s.Connections) > 0 || s.Untraced < len(pods) {
		t.Errorf("%+v", s)
	}
}

// TestSearchAllocatesLittle: a search traces connections to every virtual server, and must not print the rules that each of them passes.
func TestSearchAllocatesLittle(t *testing.T) {
	w := newWorld(t, everyKind()...)
	w.insert("mangle", "INPUT", "-d 10.96.1.11 -j DROP")
	search := explain.Search{Clients: []netip.Addr{netip.MustParseAddr(outside)}, Limit: 1}
	allocations := func() float64 { return testing.AllocsPerRun(1, func() { w.kernel.Suspects(search) }) }
	before, like := allocations(), clusterIPOf("10.96.1.7:80")
	const more, connections = 500, 2 // from this node, and from the client
	for i := range more {
		server := w.kernel.Servers[like]
		server.Key.Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 112, byte(i >> 8), byte(i)}), 80)
		w.kernel.Servers[server.Key] = server
		for name, members := range w.kernel.Members {
			if w.kernel.HasMember(kernel.Member{Set: name, Element: kernel.Element{Addr: like.Addr.Addr(), Protocol: inet.TCP, Port: 80}}) {
				members[kernel.Element{Addr: server.Key.Addr.Addr(), Protocol: inet.TCP, Port: 80}] = struct{}{}
			}
		}
	}
	if each := (allocations() - before) / (more * connections); each > 40 {
		t.Errorf("%.0f allocations for each connection", each)
	}
}
