package explain_test

import (
	"context"
	"errors"
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
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/ipvs"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/live"
	"github.com/kube-ipvs/kube-ipvs/internal/labtest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// realNode is a network namespace that an agent has set up.
type realNode struct {
	kernel   *live.Kernel
	services []*model.Service
}

func newRealNode(t *testing.T, services ...*model.Service) *realNode {
	t.Helper()
	labtest.NetNS(t)
	run(t, "ip link add eth9 type dummy")
	run(t, "ip link set eth9 up")
	run(t, "ip addr add 192.0.2.1/24 dev eth9")
	run(t, "ip addr add fd00:2::1/64 dev eth9 nodad")
	var sysctls []string
	for _, s := range compile.Base(compiletest.Config()).Sysctls {
		sysctls = append(sysctls, s.Name)
	}
	k, err := live.Open(live.Config{
		SetPrefix: compile.SetPrefix, Chains: compile.Chains, Sysctls: sysctls, Variant: iptables.NFT, Families: inet.Families,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	return &realNode{k, services}
}

// run runs one command line.
func run(t *testing.T, line string) {
	t.Helper()
	words := strings.Fields(line)
	if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
}

// converge runs a new agent until everything is in place, and returns its view. The loop must stay on this thread, whose
// network namespace it works in; the question comes from another.
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
		for answer == nil || answer.Agent.LastFullPass == nil {
			var err error
			if answer, err = loop.View(ctx, agent.Ask{All: true}); err != nil {
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
	k := &explain.Kernel{}
	var errs [4]error
	k.State, errs[0] = n.kernel.Read(t.Context())
	k.Rules, errs[1] = n.kernel.Rules(t.Context())
	k.NodeAddresses, errs[2] = n.kernel.NodeAddresses(t.Context())
	k.Connections, errs[3] = ipvs.Connections()
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	return k
}

// TestNamesWhatIsBroken breaks one object of a real kernel after the other, with the tools an operator would use. Before and
// after, with everything in place, the explanation finds nothing wrong.
func TestNamesWhatIsBroken(t *testing.T) {
	v6 := compiletest.Service("web6", "fd00:10:96::1", "fd00:10:244::1", "fd00:10:244::2")
	n := newRealNode(t, web(), v6)
	const http6 = "[fd00:10:96::1]:80"
	v := n.converge(t)
	whole := func(to, from string) {
		t.Helper()
		if e := explain.Explain(n.read(t), v, v.Base, question(to, from)); e.Verdict != explain.Passes || len(e.Reasons) > 0 || len(e.Endpoints) != 2 {
			t.Fatalf("with everything in place:\n%s", steps(e))
		}
	}
	whole(clusterIPHTTP, outside)
	whole(http6, "2001:db8::7")
	for _, c := range []struct {
		damage, repair string // what the agent cannot repair has a repair
		to             string
		verdict        explain.Verdict
		reason         string
	}{
		{"ip addr del 10.96.0.1/32 dev kube-ipvs0", "", clusterIPHTTP, explain.Stops, "the address 10.96.0.1 is not bound"},
		{"ip addr del fd00:10:96::1/128 dev kube-ipvs0", "", http6, explain.Stops, "the address fd00:10:96::1 is not bound"},
		{"ip link del kube-ipvs0", "", clusterIPHTTP, explain.Stops, "the device kube-ipvs0 does not exist"},
		{"ipset del KIPVS-4-CLUSTER-IP 10.96.0.1,tcp:80", "", clusterIPHTTP, explain.Stops, "KIPVS-4-CLUSTER-IP lacks 10.96.0.1,tcp:80"},
		{"ipset del KIPVS-6-CLUSTER-IP fd00:10:96::1,tcp:80", "", http6, explain.Stops, "KIPVS-6-CLUSTER-IP lacks fd00:10:96::1,tcp:80"},
		{"ipset del KIPVS-4-VIP 10.96.0.1", "", clusterIPHTTP, explain.Depends, "KIPVS-4-VIP lacks 10.96.0.1"},
		{"ipset flush KIPVS-4-HAIRPIN", "", clusterIPHTTP, explain.Depends, "KIPVS-4-HAIRPIN lacks 10.244.0.1,tcp:8080,10.244.0.1"},
		{"ipset del KIPVS-4-LEDGER 10.96.0.1,tcp:80", "", clusterIPHTTP, explain.Depends, "the ledger lacks -t 10.96.0.1:80"},
		{"ipvsadm -D -t 10.96.0.1:80", "", clusterIPHTTP, explain.Stops, "the virtual server -t 10.96.0.1:80 is missing"},
		{"ipvsadm -d -t 10.96.0.1:80 -r 10.244.0.2:8080", "", clusterIPHTTP, explain.Depends, "the destination 10.244.0.2:8080 of -t 10.96.0.1:80 is missing"},
		{"ipvsadm -e -t 10.96.0.1:80 -r 10.244.0.2:8080 -m -w 0", "", clusterIPHTTP, explain.Depends, "has weight 0 and must have 1"},
		{"ipvsadm -E -t 10.96.0.1:80 -s wlc", "", clusterIPHTTP, explain.Depends, "-s wlc"},
		{"sysctl -qw net.ipv4.vs.conntrack=0", "", clusterIPHTTP, explain.Depends, "net/ipv4/vs/conntrack"},
		{"sysctl -qw net.ipv4.ip_forward=0", "", clusterIPHTTP, explain.Depends, "net/ipv4/ip_forward"},
		{"iptables-nft -t nat -F KUBE-MARK-MASQ", "", clusterIPHTTP, explain.Depends, "missing in nat KUBE-MARK-MASQ"},
		{"iptables-nft -t nat -F PREROUTING", "", clusterIPHTTP, explain.Depends, `the rule "Services" is missing in nat PREROUTING`},
		{"iptables-nft -F KUBE-IPVS-FILTER", "", clusterIPHTTP, explain.Depends, "missing in filter KUBE-IPVS-FILTER"},
		{
			"iptables-nft -I INPUT -p tcp --dport 80 -j DROP", "iptables-nft -D INPUT -p tcp --dport 80 -j DROP",
			clusterIPHTTP, explain.Stops, "-t filter -A INPUT -p tcp",
		},
		{
			"iptables-nft -t nat -I PREROUTING -p tcp --dport 80 -j REDIRECT --to-ports 99", "iptables-nft -t nat -D PREROUTING 1",
			clusterIPHTTP, explain.Stops, "before IPVS sees it",
		},
		{
			"iptables-nft -I OUTPUT -d 10.244.0.2/32 -j REJECT", "iptables-nft -D OUTPUT 1",
			clusterIPHTTP, explain.Depends, "packets to the endpoint 10.244.0.2:8080 are stopped",
		},
		{"iptables-nft -P INPUT DROP", "iptables-nft -P INPUT ACCEPT", clusterIPHTTP, explain.Stops, "the policy of the chain drops it"},
	} {
		run(t, c.damage)
		from := outside
		if c.to == http6 {
			from = "2001:db8::7"
		}
		e := explain.Explain(n.read(t), v, v.Base, question(c.to, from))
		if e.Verdict != c.verdict || !says(e, c.reason) {
			t.Errorf("%s: want %s because of %q, got\n%s", c.damage, c.verdict, c.reason, steps(e))
		}
		if c.repair != "" {
			run(t, c.repair)
		}
		n.converge(t)
	}
	whole(clusterIPHTTP, outside)
	whole(http6, "2001:db8::7")
}
