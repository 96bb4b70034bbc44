package services

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/manifest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// TestKill9 kills the agent after its n-th write, for every n. After each kill, one more start makes the kernel
// match the Services. Foreign state is unchanged, and connections to remaining endpoints survive (I5, I9, I13).
// In full size, the test repeats this with a start on an empty node.
func TestKill9(t *testing.T) {
	labtest.Need(t)
	cluster.NeedKernel(t, "nothing outlives the process")
	// proves: 147
	k := newKillStage(t)
	k.reach(t, k.before) // the first start also loads kernel modules
	flows := k.client.OpenFlows(t, 60, cluster.TCP, "10.96.2.1:80", cluster.FlowConfig{
		Every: time.Second, Within: 30 * time.Second, Max: 20 * time.Minute,
	})
	after := k.reach(t, k.after)
	before := k.reach(t, k.before)
	there, back := true, true
	n := 0
	for there || back {
		n++
		there = there && k.killedAfter(t, n, k.after)
		k.mustReach(t, n, k.after, after)
		back = back && k.killedAfter(t, n, k.before)
		k.mustReach(t, n, k.before, before)
	}
	k.mustNotPlan(t, k.before)
	flows.AwaitRound(t, patience)
	t.Attr("figure", fmt.Sprintf("kills after up to %d writes: %s", n-1, flows.MustBeUnharmed(t).Summary()))
	for n := 1; n < cluster.Size(1, 1000); n++ {
		k.node.MustRun(t, cluster.AgentBinary(t), "cleanup")
		if !k.killedAfter(t, n, k.before) {
			break
		}
		k.mustReach(t, n, k.before, before)
	}
}

// After a flush of nftables, the next start makes the kernel match the Services, and releases the address of a
// deleted Service.
func TestStartAfterFlush(t *testing.T) {
	labtest.Need(t)
	cluster.NeedKernel(t, "nothing outlives the process")
	k := newKillStage(t)
	before := k.reach(t, k.before)
	k.reach(t, k.after)
	k.node.MustRun(t, "nft", "flush", "ruleset")
	if got := k.reach(t, k.before); got != before {
		t.Errorf("the kernel's state differs after a flush and a start (- want, + got):\n%s", cmp.Diff(strings.Split(before, "\n"), strings.Split(got, "\n")))
	}
	k.mustNotPlan(t, k.before)
}

type killStage struct {
	node         *cluster.Node
	client       *cluster.Pod
	stays, comes *cluster.Pod
	dir          string
	// before and after differ in everything that affects the order of writes.
	before, after string
}

func newKillStage(t *testing.T) *killStage {
	t.Helper()
	c := cluster.New(t, cluster.Config{Name: "kill", Nodes: 1, Clients: -1})
	k := &killStage{node: c.Nodes[0], dir: t.TempDir()}
	k.client, k.stays, k.comes = k.node.Pod(t, "client"), k.node.Pod(t, "stays"), k.node.Pod(t, "comes")
	k.stays.Serve(t, cluster.TCP, 8080)
	k.comes.Serve(t, cluster.TCP, 8080)
	// This virtual server belongs to another program, such as keepalived.
	k.node.MustRun(t, "ipvsadm", "-A", "-t", "203.0.113.7:443", "-s", "wlc")
	k.node.MustRun(t, "ipvsadm", "-a", "-t", "203.0.113.7:443", "-r", "203.0.113.8:443", "-g")
	services := manifest.Maker{Cluster: c, Ports: defaultPorts}
	stays := services.Service(`
metadata: {name: stays}
spec: {clusterIPs: [10.96.2.1], ports: [{name: http, port: 80, targetPort: 8080}]}
---
endpoints: [{addresses: [stays]}]`)
	changes := services.Service(`
metadata: {name: changes}
spec: {type: NodePort, clusterIPs: [10.96.2.2], ports: [{name: http, port: 80, targetPort: 8080}]}
---
endpoints: [{addresses: [stays]}]`)
	comes := services.Service(`
metadata: {name: comes}
spec:
  type: LoadBalancer
  clusterIPs: ["fd00:10:96::204"]
  allocateLoadBalancerNodePorts: false
  loadBalancerSourceRanges: ["fd00::/8"]
  ports: [{name: http, port: 80, targetPort: 8080}]
---
endpoints: [{addresses: [comes]}]`)
	k.before = stays.YAML() + changes.YAML()
	k.after = stays.With("endpoints: [{addresses: [stays]}, {addresses: [comes]}]").YAML() + changes.With(`
spec: {externalTrafficPolicy: Local, sessionAffinity: ClientIP}
---
endpoints: [{addresses: [stays]}, {addresses: [comes], conditions: {ready: false, serving: true, terminating: true}}]`).YAML() + comes.YAML()
	return k
}

// command returns an agent's command. The addresses of the later Services are routes, so each change of Services also changes all bindings.
func (k *killStage) command(t *testing.T, verb, services string) []string {
	flags := slices.Clone(agentFlags)
	if services == k.after {
		flags = append(flags, "--addresses", "routes")
	}
	return onManifests(t, k.node, verb, k.dir, flags...)
}

// killedAfter reports whether the agent was killed after its n-th write. It returns false if the agent's first sync needed fewer writes.
func (k *killStage) killedAfter(t *testing.T, n int, services string) bool {
	t.Helper()
	writeManifests(t, k.dir, services)
	agent := k.node.MustStart(t, cluster.KilledAfter(n, k.command(t, "run", services)...)...)
	defer agent.Kill()
	cluster.Eventually(t, patience, "the agent is killed, or its first sync is complete", func() error {
		if agent.Running() && !strings.Contains(agent.Log(), "initial sync complete") {
			return fmt.Errorf("the agent is still running its first sync; its log:\n%s", agent.Log())
		}
		return nil
	})
	if !agent.Running() {
		if err, _ := agent.Wait(patience); err == nil || !strings.Contains(err.Error(), "signal: killed") {
			t.Fatalf("the agent exited on its own before write %d: %v\n%s", n, err, agent.Log())
		}
		return true
	}
	t.Logf("this start needed %d writes", n-1)
	if n < 8 {
		t.Errorf("only %d writes, too few for this test; the agent's log:\n%s", n-1, agent.Log())
	}
	return false
}

func (k *killStage) reach(t *testing.T, services string) string {
	t.Helper()
	writeManifests(t, k.dir, services)
	agent := k.node.MustStart(t, k.command(t, "run", services)...)
	agent.AwaitLog(t, patience, "initial sync complete")
	if err := agent.Stop(patience); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
	if strings.Contains(agent.Log(), "failed") {
		t.Errorf("the agent needed more than one sync:\n%s", agent.Log())
	}
	return kernelState(t, k.node)
}

// mustReach requires the same state as after a start without a kill.
func (k *killStage) mustReach(t *testing.T, n int, services, want string) {
	t.Helper()
	if got := k.reach(t, services); got != want {
		t.Fatalf("killed after write %d; the kernel's state after another start differs from the state without a kill (- want, + got):\n%s",
			n, cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")))
	}
}

// kernelState returns what the agent wrote to the kernel.
func kernelState(t *testing.T, node *cluster.Node) string {
	t.Helper()
	rules := "iptables-save; ip6tables-save"
	if cluster.NFTables() {
		rules = "nft -s list table inet kube-ipvs"
	}
	out := node.MustRun(t, "sh", "-c", "ipvsadm -Sn; ipset save; ip -o addr show dev kube-ipvs0 | cut -d: -f2- | grep -v 127.0.0.117/; ip route show table local proto 117; "+rules)
	return sorted(withoutCounters(out))
}

// sorted sorts lines, because the order of set members and virtual servers is irrelevant.
func sorted(text string) string {
	lines := strings.Split(text, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func (k *killStage) mustNotPlan(t *testing.T, services string) {
	t.Helper()
	if plan, err := k.node.Run(k.command(t, "plan", services)...); err != nil || strings.TrimSpace(plan) != "" {
		t.Fatalf("the kernel still differs from the Services after one sync (%v):\n%s", err, plan)
	}
}
