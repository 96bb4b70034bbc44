package contest

import (
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const period = 30 * time.Second

func TestRulesOfKubeProxy(t *testing.T) {
	for rule, want := range map[string]bool{
		// ipvs mode
		`-m comment --comment "Kubernetes service cluster ip + port for masquerade purpose" -m set --match-set KUBE-CLUSTER-IP src,dst -j KUBE-MARK-MASQ`: true,
		`-m addrtype --dst-type LOCAL -j KUBE-NODE-PORT`:          true,
		`-m set --match-set KUBE-LOAD-BALANCER dst,dst -j ACCEPT`: true,
		// iptables mode
		`-d 10.96.0.1/32 -p tcp -m comment --comment "default/kubernetes:https cluster IP" -m tcp --dport 443 -j KUBE-SVC-NPX46M4PTMTKRN6Y`:                  true,
		`-m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS`: true,
		`-m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully`:                                                      true,
		`-m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT`:                                                          true,
		// other programs
		`-j DROP`:                    false,
		`-s 10.244.0.0/16 -j RETURN`: false,
		`-m set --match-set KIPVS-4-VIP dst -j REJECT`: false,
	} {
		if got := fromKubeProxy(rule); got != want {
			t.Errorf("%s: %t", rule, got)
		}
	}
}

func TestFewChangesAreNoContest(t *testing.T) {
	var c Contests
	found := []Finding{{Object: "virtual servers"}}
	for i := range often - 1 {
		c.Audit(start.Add(time.Duration(i)*period), period, found)
	}
	if got := c.Problems("node-1"); len(got) > 0 || c.Distance(period) != 0 {
		t.Errorf("%v, distance %s", got, c.Distance(period))
	}
}

func TestContest(t *testing.T) {
	var c Contests
	now, text := start, ""
	for i := range 20 {
		now = start.Add(time.Duration(i) * period)
		c.Audit(now, period, []Finding{{Object: "IPv4 chain KUBE-SERVICES of table nat", KubeProxy: i == 1}})
		got := c.Problems("node-1")
		if (len(got) == 1) != (i+1 >= often) {
			t.Fatalf("after %d audits: %v", i+1, got)
		}
		if len(got) == 0 {
			continue
		}
		if text == "" {
			text = got[0].String()
		}
		if got[0].String() != text {
			t.Errorf("different text: %s", got[0])
		}
	}
	for _, want := range []string{"Node node-1: IPv4 chain KUBE-SERVICES of table nat: kube-proxy has kept changing this since 2026-01-01T00:00:00Z", "stop kube-proxy"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q lacks %q", text, want)
		}
	}
	if d := c.Distance(period); d != period {
		t.Errorf("distance %s", d)
	}
	c.Audit(now.Add(quiet), period, nil)
	if len(c.Problems("node-1")) != 1 {
		t.Error("the contest ended too soon")
	}
	c.Audit(now.Add(quiet+period), period, nil)
	if len(c.Problems("node-1")) != 0 || c.Distance(period) != 0 {
		t.Error("the contest never ends")
	}
}

// The distance never decreases during a contest, and never exceeds the period, so every periodic audit repairs the
// objects.
func TestDistance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c Contests
		period := time.Duration(rapid.IntRange(1, 3600).Draw(t, "period")) * time.Second
		now, last := start, time.Duration(0)
		for range rapid.IntRange(1, 100).Draw(t, "audits") {
			now = now.Add(max(time.Second, c.Distance(period)))
			c.Audit(now, period, []Finding{{Object: "virtual servers"}})
			d := c.Distance(period)
			if d < last || d > period {
				t.Fatalf("distance %s after %s, with period %s", d, last, period)
			}
			last = d
		}
	})
}

func TestFindNamesEveryKind(t *testing.T) {
	nat := kernel.ChainID{Table: "nat", Chain: "KUBE-SERVICES"}
	rules := kernel.Ruleset{Family: inet.IPv4, Chains: []kernel.Chain{{ChainID: nat, Rules: []kernel.Rule{{Verdict: kernel.Return}}}}}
	read := map[inet.Family]kernel.RulesView{inet.IPv4: {
		Chains:  map[kernel.ChainID][]string{nat: {""}},
		Foreign: map[kernel.ChainID][]string{nat: {`-m comment --comment "kubernetes service portals" -j KUBE-SVC-A`}},
	}}
	repairs := []kernel.Op{
		{Verb: kernel.Ensure, Object: rules}, {Verb: kernel.Create, Object: kernel.DummyDevice{}},
		{Verb: kernel.Ensure, Object: kernel.SysctlSetting{Name: "net/ipv4/ip_forward", Value: "1"}},
	}
	for i := range 1000 {
		addr := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
		repairs = append(repairs, kernel.Op{Verb: kernel.Create, Object: kernel.BoundAddress{Addr: addr}})
	}
	var texts []string
	for _, f := range Find(repairs, read, map[string]string{"net/ipv4/ip_forward": "0"}) {
		texts = append(texts, f.String())
	}
	want := []string{
		"IPv4 table nat: chain KUBE-SERVICES was changed by kube-proxy",
		"kube-ipvs0: 1000 addresses are missing, the first 10.96.0.0",
		"kube-ipvs0 is missing",
		"sysctl net/ipv4/ip_forward is 0, not 1",
	}
	if strings.Join(texts, "\n") != strings.Join(want, "\n") {
		t.Errorf("%q", texts)
	}
}

func TestFindingTexts(t *testing.T) {
	key := kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: inet.TCP}
	other := kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.1:53"), Protocol: inet.UDP}
	web := kernel.ServerDestination{Server: key, Destination: kernel.Destination{Addr: netip.MustParseAddrPort("10.244.0.1:8080")}}
	member := kernel.Member{Set: "KIPVS-4-VIP", Element: kernel.Element{Addr: key.Addr.Addr()}}
	chain, output := kernel.ChainID{Table: "nat", Chain: "KUBE-SERVICES"}, kernel.ChainID{Table: "nat", Chain: "OUTPUT"}
	rules := kernel.Ruleset{
		Family: inet.IPv6, Chains: []kernel.Chain{{ChainID: chain, Rules: []kernel.Rule{{Verdict: kernel.Return}}}},
		Jumps: []kernel.Jump{{ChainID: output, Rule: kernel.Rule{Verdict: kernel.JumpTo("KUBE-SERVICES")}}},
	}
	whole := rules.View()
	op := func(verb kernel.Verb, objects ...kernel.Object) (all []kernel.Op) {
		for _, o := range objects {
			all = append(all, kernel.Op{Verb: verb, Object: o})
		}
		return all
	}
	for want, c := range map[string]struct {
		ops  []kernel.Op
		read kernel.RulesView
	}{
		"virtual server 10.96.0.1:80/TCP is missing":                                {ops: op(kernel.Create, kernel.Server{Key: key}, web)},
		"2 virtual servers are missing, the first 10.96.0.1:80/TCP":                 {ops: op(kernel.Create, kernel.Server{Key: key}, kernel.Server{Key: other})},
		"virtual server 10.96.0.1:53/UDP was changed":                               {ops: op(kernel.Update, kernel.Server{Key: other})},
		"destination 10.244.0.1:8080 of virtual server 10.96.0.1:80/TCP is missing": {ops: op(kernel.Create, web)},
		"destination 10.244.0.1:8080 of virtual server 10.96.0.1:80/TCP was added":  {ops: op(kernel.Delete, web)},
		"set KIPVS-4-VIP: 1 entry missing, the first 10.96.0.1":                     {ops: op(kernel.Create, member)},
		"set KIPVS-4-VIP: 2 entries added by another program, the first 10.96.0.1":  {ops: op(kernel.Delete, member, member)},
		"set KIPVS-4-VIP is missing":                                                {ops: op(kernel.Create, kernel.Set{Name: "KIPVS-4-VIP"})},
		"kube-ipvs0: address 10.96.0.1 is missing":                                  {ops: op(kernel.Create, kernel.BoundAddress{Addr: key.Addr.Addr()})},
		"IPv6 table nat: chain KUBE-SERVICES is missing":                            {op(kernel.Ensure, rules), kernel.RulesView{Jumps: whole.Jumps}},
		"IPv6 table nat: chain KUBE-SERVICES was emptied": {
			op(kernel.Ensure, rules), kernel.RulesView{Jumps: whole.Jumps, Chains: map[kernel.ChainID][]string{chain: {}}},
		},
		"IPv6 table nat: OUTPUT accepts packets before the agent's jump: -j ACCEPT": {
			op(kernel.Ensure, rules),
			kernel.RulesView{Chains: whole.Chains, Jumps: whole.Jumps, Ahead: map[kernel.ChainID][]string{output: {"-j ACCEPT"}}},
		},
		"IPv6 table nat: the jump from OUTPUT to KUBE-SERVICES is missing": {op(kernel.Ensure, rules), kernel.RulesView{Chains: whole.Chains}},
	} {
		found := Find(c.ops, map[inet.Family]kernel.RulesView{inet.IPv6: c.read}, nil)
		if len(found) != 1 || found[0].String() != want || found[0].Count != len(c.ops) {
			t.Errorf("%v, want %s", found, want)
			continue
		}
		if f := found[0]; !slices.Contains(Kinds[f.Part], f.Kind) {
			t.Errorf("%s: part %s has no kind %s", f, f.Part, f.Kind)
		}
	}
}

func TestTroubleshootingPage(t *testing.T) {
	text, err := os.ReadFile("../../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	page := strings.Join(strings.Fields(string(text)), " ")
	named := regexp.MustCompile("label `part` is ([^.]*), and `kind` is ([^.]*)\\.").FindStringSubmatch(page)
	if named == nil {
		t.Fatal("the page does not name the labels")
	}
	kinds := map[string]bool{}
	for part, list := range Kinds {
		if !strings.Contains(named[1], "`"+part+"`") {
			t.Errorf("the page does not name the part %s", part)
		}
		for _, kind := range list {
			if kinds[kind] = true; !strings.Contains(named[2], "`"+kind+"`") {
				t.Errorf("the page does not name the kind %s", kind)
			}
		}
	}
	if have := strings.Count(named[0], "`")/2 - 2; have != len(Kinds)+len(kinds) {
		t.Errorf("the page names %d parts and kinds, want %d", have, len(Kinds)+len(kinds))
	}
}
