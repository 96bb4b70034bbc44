package services

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/labtest"
)

// checkEvery is after how many kills the kernel is looked at.
const checkEvery = 20

// kills is how often the agent is killed: $KUBE_IPVS_KILLS, or 40.
func kills(t *testing.T) int {
	t.Helper()
	text := os.Getenv("KUBE_IPVS_KILLS")
	if text == "" {
		return 2 * checkEvery
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < checkEvery {
		t.Fatalf("KUBE_IPVS_KILLS=%q: use a number from %d on", text, checkEvery)
	}
	return n
}

// foreignServer is what somebody else has in IPVS, as keepalived might.
const foreignServer = "-t 203.0.113.7:443"

// TestKill9 kills the agent at random points of its work, under open connections, while the Services change from one start to
// the next. Whenever it is left alone, one pass brings the kernel to what is wanted; nothing of others is touched and no
// connection to an endpoint that stays is lost (I5, I9, I13).
func TestKill9(t *testing.T) {
	labtest.Need(t)
	// proves: 147
	k := newKillStage(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))

	k.startAndWait(t) // the first start also loads the kernel's modules
	k.writeManifests(t, random)
	whole := k.startAndWait(t)
	t.Logf("a start with changes takes %s", whole.Round(time.Millisecond))
	flows := k.client.OpenFlows(t, 60, cluster.TCP, "10.96.2.1:80", cluster.FlowConfig{
		Every: time.Second, Within: 30 * time.Second, Max: 20 * time.Minute,
	})
	for i := range kills(t) {
		k.writeManifests(t, random)
		agent := k.node.MustStart(t, k.command(t, "run")...)
		// Sleeping is the point here: it chooses where in its start or its first pass the agent is killed.
		time.Sleep(time.Duration(random.Int64N(int64(whole))))
		agent.Kill()
		if (i+1)%checkEvery == 0 {
			k.check(t, flows)
		}
	}
	flows.MustBeUnharmed(t)
}

type killStage struct {
	node         *cluster.Node
	client       *cluster.Pod
	stays, comes *cluster.Pod
	dir          string
	foreign      string
}

func newKillStage(t *testing.T) *killStage {
	t.Helper()
	c := cluster.New(t, cluster.Config{Name: "kill", Nodes: 1, Clients: -1})
	k := &killStage{node: c.Nodes[0], dir: t.TempDir()}
	k.client, k.stays, k.comes = k.node.Pod(t, "client"), k.node.Pod(t, "stays"), k.node.Pod(t, "comes")
	k.stays.Serve(t, cluster.TCP, 8080)
	k.comes.Serve(t, cluster.TCP, 8080)
	k.node.MustRun(t, "ipvsadm", "-A", "-t", "203.0.113.7:443", "-s", "wlc")
	k.node.MustRun(t, "ipvsadm", "-a", "-t", "203.0.113.7:443", "-r", "203.0.113.8:443", "-g")
	k.foreign = k.foreignNow(t)
	k.writeManifests(t, rand.New(rand.NewPCG(0, 0)))
	return k
}

func (k *killStage) command(t *testing.T, verb string) []string {
	return onManifests(t, k.node, verb, k.dir, agentFlags...)
}

// startAndWait runs the agent until its initial sync is complete, and says how long that took.
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
		t.Errorf("one pass was not enough:\n%s", agent.Log())
	}
	return took
}

// check lets the agent finish, and then wants the kernel to be exactly what is wanted.
func (k *killStage) check(t *testing.T, flows *cluster.Flows) {
	t.Helper()
	k.startAndWait(t)
	plan, err := k.node.Run(k.command(t, "plan")...)
	if err != nil || strings.TrimSpace(plan) != "" {
		t.Fatalf("after one pass the kernel still differs from what is wanted (%v):\n%s", err, plan)
	}
	if now := k.foreignNow(t); now != k.foreign {
		t.Fatalf("somebody else's virtual server changed:\n%s\nit was:\n%s", now, k.foreign)
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

// writeManifests keeps the first Service with its pod, and makes others come, go and change at random.
func (k *killStage) writeManifests(t *testing.T, random *rand.Rand) {
	t.Helper()
	svc := service{name: "stays", ips: []string{"10.96.2.1", "fd00:10:96::201"}, ports: []port{http}, endpoints: []endpoint{podEndpoint(k.stays)}}
	if random.IntN(2) == 0 {
		svc.endpoints = append(svc.endpoints, podEndpoint(k.comes).as([]string{"", "unready", "terminating"}[random.IntN(3)]))
	}
	text := svc.manifest()
	for i := range 20 {
		if random.IntN(2) == 0 {
			continue
		}
		other := service{
			name:      fmt.Sprintf("other-%d", i),
			ips:       []string{fmt.Sprintf("10.96.3.%d", i), fmt.Sprintf("fd00:10:96::3%02x", i)},
			ports:     all[:1+random.IntN(3)],
			endpoints: []endpoint{podEndpoint(k.stays), podEndpoint(k.comes)}[:random.IntN(3)],
		}
		text += other.manifest()
	}
	aside := filepath.Join(k.dir, ".new")
	if err := os.WriteFile(aside, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(aside, filepath.Join(k.dir, "all.yaml")); err != nil {
		t.Fatal(err)
	}
}
