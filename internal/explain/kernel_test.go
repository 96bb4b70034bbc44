package explain_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/foreign"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/ipvs"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/live"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/netdev"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// realNode is a network namespace in which an agent serves Services.
type realNode struct {
	kernel   *live.Kernel
	tables   *iptables.Backend
	routes   *netdev.Backend
	services []*model.Service
}

func newRealNode(t *testing.T, services ...*model.Service) *realNode {
	t.Helper()
	labtest.NetNS(t)
	run(t, "ip link add eth9 type dummy")
	run(t, "ip link set eth9 up")
	run(t, "ip addr add 192.0.2.1/24 dev eth9")
	run(t, "ip addr add fd00:2::1/64 dev eth9 nodad")
	run(t, "ip route add default via 192.0.2.254")
	run(t, "ip route add default via fd00:2::fe")
	var sysctls []string
	for _, s := range compile.Base(compiletest.Config()).Sysctls {
		sysctls = append(sysctls, s.Name)
	}
	k, err := live.Open(live.Config{
		SetPrefix: compile.SetPrefix, Chains: compile.Chains, Sysctls: sysctls, Variant: iptables.NFT, Families: inet.Families,
	})
	labtest.Opened(t, k, err)
	routes, err := netdev.New()
	labtest.Opened(t, routes, err)
	tables := iptables.New(iptables.Config{Chains: compile.Chains, Variant: iptables.NFT, Families: inet.Families})
	return &realNode{k, tables, routes, services}
}

func run(t *testing.T, line string) {
	t.Helper()
	if out, err := exec.Command("sh", "-c", "set -e; "+strings.NewReplacer("{ ", "'{ ", " }", " }'").Replace(line)).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
}

// converge runs a new agent until its first full sync has succeeded, and returns its view. The loop must stay on this thread and
// its network namespace; the view is requested from another goroutine.
func (n *realNode) converge(t *testing.T) *view.View {
	t.Helper()
	all := source{}
	for _, s := range n.services {
		all[s.ID] = s
	}
	loop := agent.New(agent.Config{Compile: compiletest.Config(), AuditInterval: time.Hour}, all, n.kernel, zap.NewNop())
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var answer *view.View
	var asking sync.WaitGroup
	asking.Go(func() {
		defer stop()
		for answer == nil || answer.Agent.LastFullSync == nil {
			var err error
			if answer, err = loop.View(ctx, agent.Query{All: true}); err != nil {
				return
			}
		}
	})
	loop.Run(ctx)
	asking.Wait()
	if answer == nil || answer.Agent.Error != "" {
		t.Fatalf("the agent did not converge: %+v", answer)
	}
	return answer
}

func (n *realNode) read(t *testing.T) *explain.Kernel {
	t.Helper()
	k := &explain.Kernel{Routes: map[netip.Addr]kernel.Route{}}
	var errs [7]error
	k.State, errs[0] = n.kernel.Read(t.Context())
	k.Rules, errs[1] = n.tables.List(t.Context())
	for _, r := range compile.Base(compiletest.Config()).Rulesets {
		k.Rules[r.Family].Recognize(r)
	}
	k.NodeAddresses, errs[2] = n.kernel.NodeAddresses(t.Context())
	k.Connections, errs[3] = ipvs.Connections()
	k.Chains, errs[4] = n.tables.BaseChains(t.Context())
	k.NFTables, errs[6] = foreign.Read(t.Context(), k.Chains)
	for _, client := range []string{outside, outside6} {
		addr := netip.MustParseAddr(client)
		var err error
		k.Routes[addr], err = n.routes.RouteTo(addr, 0)
		errs[5] = errors.Join(errs[5], err)
	}
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	return k
}

// damages lists changes by an operator or another program. Each has the reason that the explanation must give.
var damages = []struct {
	damage  string
	repair  string // a command, if the agent does not repair the damage
	verdict explain.Verdict
	reason  string
	// reason6 is the reason for the IPv6 address; empty if only IPv4 is damaged.
	reason6 string
}{
	{
		"ip addr del 10.96.0.1/32 dev kube-ipvs0; ip addr del fd00:10:96::1/128 dev kube-ipvs0", "",
		explain.Stops, "the address 10.96.0.1 is not bound", "the address fd00:10:96::1 is not bound",
	},
	{"ip link del kube-ipvs0", "", explain.Stops, "the device kube-ipvs0 does not exist", "the device kube-ipvs0 does not exist"},
	{
		"ipset del KIPVS-4-CLUSTER-IP 10.96.0.1,tcp:80; ipset del KIPVS-6-CLUSTER-IP fd00:10:96::1,tcp:80", "",
		explain.Stops, "KIPVS-4-CLUSTER-IP lacks 10.96.0.1,tcp:80", "KIPVS-6-CLUSTER-IP lacks fd00:10:96::1,tcp:80",
	},
	{
		"ipset del KIPVS-4-VIP 10.96.0.1; ipset del KIPVS-6-VIP fd00:10:96::1", "",
		explain.Differs, "KIPVS-4-VIP lacks 10.96.0.1", "KIPVS-6-VIP lacks fd00:10:96::1",
	},
	{
		"ipset flush KIPVS-4-HAIRPIN; ipset flush KIPVS-6-HAIRPIN", "",
		explain.Differs, "KIPVS-4-HAIRPIN lacks 10.244.0.1,tcp:8080,10.244.0.1", "KIPVS-6-HAIRPIN lacks fd00:10:244::1,tcp:8080,fd00:10:244::1",
	},
	{
		"ipset del KIPVS-4-LEDGER 10.96.0.1,tcp:80; ipset del KIPVS-6-LEDGER fd00:10:96::1,tcp:80", "",
		explain.Differs, "the owner record of -t 10.96.0.1:80", "the owner record of -t [fd00:10:96::1]:80",
	},
	{
		"ipvsadm -D -t 10.96.0.1:80; ipvsadm -D -t [fd00:10:96::1]:80", "",
		explain.Stops, "the virtual server -t 10.96.0.1:80 is missing", "the virtual server -t [fd00:10:96::1]:80 is missing",
	},
	{
		"ipvsadm -d -t 10.96.0.1:80 -r 10.244.0.2:8080; ipvsadm -d -t [fd00:10:96::1]:80 -r [fd00:10:244::2]:8080", "",
		explain.Differs, "the destination 10.244.0.2:8080 of -t 10.96.0.1:80 is missing", "the destination [fd00:10:244::2]:8080",
	},
	{
		"ipvsadm -e -t 10.96.0.1:80 -r 10.244.0.2:8080 -m -w 0; ipvsadm -e -t [fd00:10:96::1]:80 -r [fd00:10:244::2]:8080 -m -w 0", "",
		explain.Differs, "has weight 0 and must have 1", "has weight 0 and must have 1",
	},
	{"ipvsadm -E -t 10.96.0.1:80 -s wlc; ipvsadm -E -t [fd00:10:96::1]:80 -s wlc", "", explain.Differs, "-s wlc", "-s wlc"},
	{
		"iptables-nft -I INPUT -p tcp --dport 80 -j DROP; ip6tables-nft -I INPUT -i eth9 -j DROP", "iptables-nft -D INPUT 1; ip6tables-nft -D INPUT 1",
		explain.Stops, "-t filter -A INPUT -p tcp", "-A INPUT -i eth9",
	},
	{
		"iptables-nft -t nat -I PREROUTING -p tcp --dport 80 -j REDIRECT --to-ports 99; ip6tables-nft -t raw -I PREROUTING -j DROP",
		"iptables-nft -t nat -D PREROUTING 1; ip6tables-nft -t raw -D PREROUTING 1",
		explain.Stops, "before an endpoint is selected", "stopped in raw PREROUTING",
	},
	{
		"iptables-nft -I OUTPUT -d 10.244.0.2/32 -j REJECT; ip6tables-nft -I OUTPUT -d fd00:10:244::2/128 -j REJECT",
		"iptables-nft -D OUTPUT 1; ip6tables-nft -D OUTPUT 1",
		explain.Partly, "packets to endpoint 10.244.0.2:8080 are stopped", "packets to endpoint [fd00:10:244::2]:8080 are stopped",
	},
	{
		"ip6tables-nft -t raw -I PREROUTING -j CT --notrack; iptables-nft -t raw -I PREROUTING -j CT --notrack",
		"ip6tables-nft -t raw -D PREROUTING 1; iptables-nft -t raw -D PREROUTING 1",
		explain.Unclear, "disables connection tracking", "disables connection tracking",
	},
	{
		"nft add table inet guard; nft add chain inet guard in { type filter hook input priority 0 ; policy accept ; }; " +
			"nft add rule inet guard in tcp dport 80 drop", "nft delete table inet guard",
		explain.Stops, "nft -a list chain inet guard in", "nft -a list chain inet guard in",
	},
	{
		"nft add table inet guard; nft add chain inet guard pre { type filter hook prerouting priority 0 ; policy accept ; }; " +
			"nft add rule inet guard pre fib daddr . iif type != { local, broadcast, multicast } drop", "nft delete table inet guard",
		explain.Stops, "nft -a list chain inet guard pre", "nft -a list chain inet guard pre",
	},
	{
		"iptables-nft -P INPUT DROP; " +
			"nft add table ip6 guard; nft add chain ip6 guard in { type filter hook prerouting priority -200 ; policy drop ; }",
		"iptables-nft -P INPUT ACCEPT; nft delete table ip6 guard",
		explain.Stops, "the chain policy drops it", "the chain ip6 guard in has no rules, and its policy drops everything",
	},
	{"iptables-nft -I INPUT -i eth8 -j DROP", "iptables-nft -D INPUT 1", explain.Passes, "", ""},
}

// TestNamesWhatIsBroken breaks a real kernel, one kind of object at a time, with an operator's tools. Before the damage and
// after the repair, explain finds nothing wrong.
func TestNamesWhatIsBroken(t *testing.T) {
	v6 := compiletest.Service("web6", "fd00:10:96::1", "fd00:10:244::1", "fd00:10:244::2")
	n := newRealNode(t, web(), v6)
	const http6 = "[fd00:10:96::1]:80"
	v := n.converge(t)
	whole := func(to, from string) {
		t.Helper()
		if e := explain.Explain(n.read(t), v, v.Base, question(to, from)); e.Verdict != explain.Passes || len(e.Reasons) > 0 || len(e.Endpoints) != 2 {
			t.Fatalf("before the damage or after the repair, explain reports a problem:\n%s", steps(e))
		}
	}
	whole(clusterIPHTTP, outside)
	whole(http6, outside6)
	for _, c := range damages {
		run(t, c.damage)
		k := n.read(t)
		expect := func(q explain.Question, reason string) {
			if e := explain.Explain(k, v, v.Base, q); e.Verdict != c.verdict || reason != "" && !says(e, reason) {
				t.Errorf("%s: want %s because of %q, got\n%s", c.damage, c.verdict, reason, steps(e))
			}
		}
		expect(question(clusterIPHTTP, outside), c.reason)
		if c.reason6 != "" {
			expect(question(http6, outside6), c.reason6)
		}
		if c.repair != "" {
			run(t, c.repair)
		} else {
			n.converge(t)
		}
	}
	whole(clusterIPHTTP, outside)
	whole(http6, outside6)
	allAtOnce(t, n, v)
}

// allAtOnce breaks all objects of a kind together, which is faster. The explanation must name each object.
func allAtOnce(t *testing.T, n *realNode, v *view.View) {
	for _, c := range []struct {
		kind string
		// lines maps each command to the text that the explanation must contain.
		lines map[string]string
	}{
		{"sysctl", sysctlDamage(v)}, {"chain", chainDamage(v)}, {"jump", jumpDamage(v)},
	} {
		for line := range c.lines {
			run(t, line)
		}
		k := n.read(t)
		all := explain.Explain(k, v, v.Base, question(clusterIPHTTP, outside))
		all6 := explain.Explain(k, v, v.Base, question("[fd00:10:96::1]:80", outside6))
		for line, want := range c.lines {
			e := all
			if strings.HasPrefix(line, "ip6tables") {
				e = all6
			}
			if e.Verdict == explain.Passes || !says(e, want) {
				t.Errorf("%s: %s: no reason contains %q\n%s", c.kind, line, want, steps(e))
			}
		}
		if len(c.lines) == 0 {
			t.Errorf("the kernel has no %s to break", c.kind)
		}
		n.converge(t)
	}
}

func sysctlDamage(v *view.View) map[string]string {
	lines := map[string]string{}
	for _, s := range v.Base.Sysctls {
		if !strings.HasPrefix(s.Name, "net/netfilter/") { // the sysctls in net/netfilter are only limits
			lines["sysctl -qw "+s.Name+"=0"] = "the sysctl " + s.Name
		}
	}
	return lines
}

var commandOf = map[string]string{inet.IPv4.String(): "iptables-nft", inet.IPv6.String(): "ip6tables-nft"}

func chainDamage(v *view.View) map[string]string {
	lines := map[string]string{}
	for _, r := range v.Base.Rules {
		if !r.Jump {
			lines[fmt.Sprintf("%s -t %s -F %s", commandOf[r.Family], r.Table, r.Chain)] = "is missing in " + r.Table + " " + r.Chain
		}
	}
	return lines
}

func jumpDamage(v *view.View) map[string]string {
	lines := map[string]string{}
	for _, r := range v.Base.Rules {
		if r.Jump {
			lines[fmt.Sprintf("%s -t %s -F %s", commandOf[r.Family], r.Table, r.Chain)] = "is missing in " + r.Table + " " + r.Chain
		}
	}
	return lines
}
