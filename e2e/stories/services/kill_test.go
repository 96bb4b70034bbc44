package services

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/manifest"
	"github.com/kube-ipvs/kube-ipvs/internal/labtest"
)

// checkEvery is the number of kills between two checks of the kernel.
const checkEvery = 20

// kills is how often the test kills the agent: $KUBE_IPVS_KILLS, or 40.
func kills(t *testing.T) int {
	t.Helper()
	text := os.Getenv("KUBE_IPVS_KILLS")
	if text == "" {
		return 2 * checkEvery
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < checkEvery {
		t.Fatalf("KUBE_IPVS_KILLS=%q: use %d or more", text, checkEvery)
	}
	return n
}

// foreignServer is a virtual server of another program, such as keepalived.
const foreignServer = "-t 203.0.113.7:443"

// TestKill9 kills the agent at random points, with open connections, while the Services change between starts. After any kill, one
// sync makes the kernel match the Services, foreign state is unchanged, and connections to remaining endpoints survive (I5, I9,
// I13).
func TestKill9(t *testing.T) {
	labtest.Need(t)
	// proves: 147
	k := newKillStage(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))

	k.startAndWait(t) // the first start also loads kernel modules
	k.changeServices(t, random)
	sync := k.startAndWait(t)
	t.Logf("a start with changes takes %s", sync.Round(time.Millisecond))
	flows := k.client.OpenFlows(t, 60, cluster.TCP, "10.96.2.1:80", cluster.FlowConfig{
		Every: time.Second, Within: 30 * time.Second, Max: 20 * time.Minute,
	})
	n := kills(t)
	for i := range n {
		k.changeServices(t, random)
		agent := k.node.MustStart(t, k.command(t, "run")...)
		// The length of this sleep decides where in its start or its first sync the agent is killed.
		time.Sleep(time.Duration(random.Int64N(int64(sync))))
		agent.Kill()
		if (i+1)%checkEvery == 0 {
			k.check(t, flows)
		}
	}
	t.Logf("%d kills: %s", n, flows.MustBeUnharmed(t))
}

type killStage struct {
	node         *cluster.Node
	client       *cluster.Pod
	stays, comes *cluster.Pod
	dir          string
	foreign      string
	services     manifest.Maker
}

func newKillStage(t *testing.T) *killStage {
	t.Helper()
	c := cluster.New(t, cluster.Config{Name: "kill", Nodes: 1, Clients: -1})
	k := &killStage{node: c.Nodes[0], dir: t.TempDir(), services: manifest.Maker{Cluster: c, Ports: defaultPorts}}
	k.client, k.stays, k.comes = k.node.Pod(t, "client"), k.node.Pod(t, "stays"), k.node.Pod(t, "comes")
	k.stays.Serve(t, cluster.TCP, 8080)
	k.comes.Serve(t, cluster.TCP, 8080)
	k.node.MustRun(t, "ipvsadm", "-A", "-t", "203.0.113.7:443", "-s", "wlc")
	k.node.MustRun(t, "ipvsadm", "-a", "-t", "203.0.113.7:443", "-r", "203.0.113.8:443", "-g")
	k.foreign = k.foreignNow(t)
	k.changeServices(t, rand.New(rand.NewPCG(0, 0)))
	return k
}

func (k *killStage) command(t *testing.T, verb string) []string {
	return onManifests(t, k.node, verb, k.dir, agentFlags...)
}

// startAndWait runs the agent until its initial sync is complete and returns how long that took.
func (k *killStage) startAndWait(t *testing.T) time.Duration {
	t.Helper()
	start := time.Now()
	agent := k.node.MustStart(t, k.command(t, "run")...)
	agent.AwaitLog(t, patience, "initial sync complete")
	took := time.Since(start)
	if err := agent.Stop(patience); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
	if strings.Contains(agent.Log(), "failed") {
		t.Errorf("one sync was not enough:\n%s", agent.Log())
	}
	return took
}

// check lets the agent finish. The kernel must then match the Services exactly.
func (k *killStage) check(t *testing.T, flows *cluster.Flows) {
	t.Helper()
	k.startAndWait(t)
	plan, err := k.node.Run(k.command(t, "plan")...)
	if err != nil || strings.TrimSpace(plan) != "" {
		t.Fatalf("after one sync the kernel still differs from the Services (%v):\n%s", err, plan)
	}
	if now := k.foreignNow(t); now != k.foreign {
		t.Fatalf("a foreign virtual server changed:\n%s\nbefore:\n%s", now, k.foreign)
	}
	flows.AwaitRound(t, patience)
}

func (k *killStage) foreignNow(t *testing.T) string {
	t.Helper()
	var lines []string
	for line := range strings.Lines(k.node.MustRun(t, "ipvsadm", "-Sn")) {
		if strings.Contains(line, foreignServer) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// changeServices keeps the first Service with its pod and adds, removes and changes others at random.
func (k *killStage) changeServices(t *testing.T, random *rand.Rand) {
	t.Helper()
	svc := k.services.Service(`
metadata: {name: stays}
spec: {clusterIPs: [10.96.2.1, "fd00:10:96::201"], ports: [{name: http, port: 80, targetPort: 8080}]}
---
endpoints: [{addresses: [stays]}]`)
	if random.IntN(2) == 0 {
		svc = svc.With(fmt.Sprintf("endpoints: [{addresses: [stays]}, {addresses: [comes], conditions: %s}]",
			[]string{"{ready: true}", "{ready: false}", "{ready: false, serving: true, terminating: true}"}[random.IntN(3)]))
	}
	text := svc.YAML()
	for i := range 20 {
		if random.IntN(2) == 0 {
			continue
		}
		other := k.services.Service(fmt.Sprintf(`
metadata: {name: other-%d}
spec: {clusterIPs: [10.96.3.%d, "fd00:10:96::3%02x"]}
---
endpoints: %s`, i, i, i, []string{"[]", "[{addresses: [stays]}]", "[{addresses: [stays]}, {addresses: [comes]}]"}[random.IntN(3)]))
		other.Spec.Ports = other.Spec.Ports[:1+random.IntN(3)]
		text += other.YAML()
	}
	writeManifests(t, k.dir, text)
}
