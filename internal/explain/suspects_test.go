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

// TestSuspectsCoverEveryRule: if a foreign rule stops packets to some virtual servers, then Suspects returns one of them.
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
	if suspects, left := w.kernel.Suspects([]netip.Addr{client}, len(servers)); len(servers) < 3 || len(suspects) > 0 || left > 0 {
		t.Fatalf("without foreign rules: suspects %v of %d virtual servers, %d left", suspects, len(servers), left)
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
		suspects, _ := w.kernel.Suspects([]netip.Addr{client}, len(servers))
		stopped := w.stoppedBy(suspects, client)
		for rule, to := range w.stoppedBy(servers, client) {
			if stopped[rule] == "" {
				t.Fatalf("rule %s stops packets to %s, and to none of the suspects %v", rule, to, suspects)
			}
		}
	})
}

// stoppedBy maps the foreign rules that explain names to a virtual server to which they stop or may stop packets. It identifies the rules by
// their comments, and ignores replies, which Suspects does not trace.
func (w *world) stoppedBy(servers []kernel.ServerKey, client netip.Addr) map[string]string {
	by := map[string]string{}
	for _, to := range servers {
		for _, from := range []netip.Addr{to.Addr.Addr(), client} {
			x := explain.Explain(w.kernel, w.view, w.view.Base, explain.Question{To: to, From: from})
			for _, step := range x.Steps {
				for i := range 4 {
					name := fmt.Sprintf("--comment n%d ", i)
					if stops := step.Verdict == explain.Stops || step.Verdict == explain.Depends; stops && strings.Contains(step.Object, name) && !strings.HasPrefix(step.At, "reply") {
						by[name] = to.String()
					}
				}
			}
		}
	}
	return by
}

// TestSuspectsAreLimited: rules that stop few virtual servers come first, and the work is limited.
func TestSuspectsAreLimited(t *testing.T) {
	w := newWorld(t, everyKind()...)
	var rare kernel.ServerKey
	for key := range w.kernel.Servers {
		if key.Addr.Addr().String() == "10.96.1.11" {
			rare = key
		}
	}
	w.insert("filter", "OUTPUT", "-d 10.96.0.0/16 -j DROP")
	w.insert("mangle", "OUTPUT", "-d "+rare.Addr.Addr().String()+" -j DROP")
	if suspects, _ := w.kernel.Suspects(nil, 1); !slices.Equal(suspects, []kernel.ServerKey{rare}) {
		t.Errorf("suspects %v, want %v", suspects, rare)
	}
	w.kernel.OtherSets = map[string]kernel.OtherSet{"large": {Elements: make([]kernel.OtherElement, 60_000_000)}}
	if suspects, left := w.kernel.Suspects(nil, 1); len(suspects) > 0 || left == 0 {
		t.Errorf("suspects %v, %d left", suspects, left)
	}
}
