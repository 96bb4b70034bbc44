package scale

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/labtest"
)

const (
	existing = 5_000 // Services
	each     = 2     // endpoints
	podCIDR  = "10.244.0.0/16"
	// kubernetesService is where pods find the API server.
	kubernetesService = "10.96.0.1:443"
	patience          = 5 * time.Minute
)

var apiAddress = netip.MustParseAddr("192.168.50.1")

// The limits stand for an emulated machine that others use, too, some ten times slower than a node. They catch what has become far
// worse; what a start takes on real hardware they do not say.
const (
	usableWithin = 3 * time.Minute
	idleShare    = 0.5 // of one CPU
)

// TestNewNode starts the agent on a node of a cluster that has 5,000 Services, and measures how long it takes from the start of
// the program until a pod and a process of the node reach the API server through its Service, and what the agent costs when
// there is nothing to do.
func TestNewNode(t *testing.T) {
	labtest.Need(t)
	c := cluster.New(t, cluster.Config{Name: "newnode", Nodes: 1, Clients: -1, Families: cluster.IPv4Only})
	agent, took := startNode(t, c.Nodes[0], populated(t, c))
	if took > usableWithin {
		t.Errorf("the API server's Service was usable after %s, want %s at most", took, usableWithin)
	}

	// Twice the time between two audits, each of which reads the whole kernel.
	begin, before := time.Now(), cpuTime(t, agent.PID)
	time.Sleep(2 * auditInterval)
	share := float64(cpuTime(t, agent.PID)-before) / float64(time.Since(begin))
	t.Logf("idle, with two audits: %.1f%% of one CPU", 100*share)
	if share > idleShare {
		t.Errorf("the idle agent takes %.1f%% of one CPU, want %.1f%% at most", 100*share, 100*idleShare)
	}
}

// auditInterval is the default of --ipvs-sync-period.
const auditInterval = 30 * time.Second

// startNode starts the agent on a node that has nothing of it, and says after which time the API server's Service was usable
// for everybody there.
func startNode(t *testing.T, node *cluster.Node, kubeconfig string) (*cluster.Process, time.Duration) {
	t.Helper()
	pod := node.Pod(t, "client-of-"+node.Name)
	begin := time.Now()
	agent := node.MustStart(t, cluster.AgentBinary(t), "run", "--kubeconfig", kubeconfig, "--hostname-override", node.Name,
		"--cluster-cidr", podCIDR, "--conntrack-max-per-core", "0")
	var usable [2]time.Duration
	for i, from := range []*cluster.Host{pod.Host, node.Host} {
		cluster.Eventually(t, patience, from.Name+" reaches the API server through its Service", func() error { return greetsAPI(from) })
		usable[i] = time.Since(begin)
	}
	agent.AwaitLog(t, patience, "everything is in place")
	t.Logf("%s: usable for a pod after %s, for the node's processes after %s; CPU of the agent until everything was in place: %s",
		node.Name, usable[0].Round(time.Millisecond), usable[1].Round(time.Millisecond), cpuTime(t, agent.PID))
	for line := range strings.Lines(agent.Log()) {
		if strings.Contains(line, "watching the API server") || strings.Contains(line, "everything is in place") {
			t.Log(strings.TrimSpace(line))
		}
	}
	return agent, usable[1]
}

// greetsAPI wants a server behind the Service that speaks TLS.
func greetsAPI(from *cluster.Host) error {
	return from.Do(func() error {
		conn, err := net.DialTimeout("tcp", kubernetesService, 3*time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			return err
		}
		return tls.Client(conn, &tls.Config{InsecureSkipVerify: true}).Handshake()
	})
}

// cpuTime is what a process has used so far.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	// The program's name, in parentheses, may hold anything. Its time and the kernel's for it are the 12th and 13th field behind.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	const tick = time.Second / 100
	var total time.Duration
	for _, field := range fields[11:13] {
		ticks, err := strconv.Atoi(field)
		if err != nil {
			t.Fatalf("/proc/%d/stat: %v", pid, err)
		}
		total += time.Duration(ticks) * tick
	}
	return total
}
