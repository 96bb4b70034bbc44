package newnode

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

const (
	existing = 5_000 // Services
	each     = 2     // endpoints
	podCIDR  = "10.244.0.0/16"
	// kubernetesService is the address at which pods reach the API server.
	kubernetesService = "10.96.0.1:443"
	patience          = 5 * time.Minute
)

var apiAddress = netip.MustParseAddr("192.168.50.1")

const (
	// usableWithin limits the time until the API server is reachable through its Service.
	usableWithin = 2 * time.Second
	// inPlaceWithin is the limit for all Services. It only catches large regressions.
	inPlaceWithin = 8 * time.Second
	idleShare     = 0.05 // of the CPU
	// auditInterval is the default of --ipvs-sync-period.
	auditInterval = 30 * time.Second
)

// TestNewNode starts the agent in a cluster with 5,000 Services, and measures the time until the API server is
// reachable through its Service.
func TestNewNode(t *testing.T) {
	// proves: 151
	labtest.Need(t)
	if mode := os.Getenv("LAB_MODE"); mode != "qemu counted" {
		t.Fatalf("the limits need a clock that counts instructions, and this lab (%s) has none; use `make new-node`", mode)
	}
	c := cluster.New(t, cluster.Config{Name: "newnode", Nodes: 1, Clients: -1, Families: cluster.IPv4Only})
	api, kubeconfig := populated(t, c)
	node := c.Nodes[0]
	pod := node.Pod(t, "client")
	node.ReadAhead(t, cluster.AgentBinary(t), os.Getenv("KUBE_IPVS_ROOT")+"/bin/kube-ipvs")
	for _, from := range []*cluster.Host{pod.Host, node.Host} {
		if greetsAPI(from) == nil {
			t.Fatalf("%s reaches the API server through its Service before the agent runs, so there is nothing to measure", from.Name)
		}
	}

	watch := startWatch(t, api.PIDs()...)
	agent := node.MustStart(t, cluster.AgentBinary(t), "run", "--kubeconfig", kubeconfig, "--hostname-override", node.Name,
		"--cluster-cidr", podCIDR, "--conntrack-max-per-core", "0")
	for _, from := range []*cluster.Host{pod.Host, node.Host} {
		cluster.Eventually(t, patience, from.Name+" reaches the API server through its Service", func() error { return greetsAPI(from) })
		watch.within(t, usableWithin, "the API server's Service usable for "+from.Name)
	}
	agent.AwaitLog(t, patience, "initial sync complete")
	watch.within(t, inPlaceWithin, fmt.Sprintf("all %d Services in place", existing))
	t.Logf("CPU time of the agent: %s; of its child processes: %s", rounded(cluster.CPUTime(t, agent.PID)), rounded(cluster.ChildrenTime(t, agent.PID)))

	// Two audits compare everything with the kernel during this time.
	used := func() time.Duration { return cluster.CPUTime(t, agent.PID) + cluster.ChildrenTime(t, agent.PID) }
	begin, spent := time.Now(), used()
	time.Sleep(2 * auditInterval)
	share := float64(used()-spent) / float64(time.Since(begin))
	t.Logf("idle, with two audits: %.1f%% of the CPU", 100*share)
	if share > idleShare {
		t.Errorf("the idle agent uses %.1f%% of the CPU, want at most %.1f%%", 100*share, 100*idleShare)
	}
	if servers, err := node.VirtualServers(); err != nil || len(servers) <= existing { // includes the API server's virtual server
		t.Errorf("after the initial sync, the kernel has only %d virtual servers for %d Services (%v)", len(servers), existing, err)
	}
}

// stopwatch subtracts the CPU time of the API server, which has its own CPUs in a real cluster.
type stopwatch struct {
	begin       time.Time
	others      []int
	spent, idle time.Duration
}

func startWatch(t *testing.T, others ...int) *stopwatch {
	t.Helper()
	return &stopwatch{begin: time.Now(), others: others, spent: cluster.CPUTime(t, others...), idle: cluster.IdleTime(t)}
}

func (w *stopwatch) within(t *testing.T, limit time.Duration, what string) {
	t.Helper()
	all, others, idle := time.Since(w.begin), cluster.CPUTime(t, w.others...)-w.spent, cluster.IdleTime(t)-w.idle
	took := all - others
	t.Attr("figure", fmt.Sprintf("%s after %s (CPU idle for %s); including the API server and etcd: %s", what, rounded(took), rounded(idle), rounded(all)))
	if took > limit {
		t.Errorf("%s after %s, want at most %s", what, took, limit)
	}
}

func rounded(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

// soon is less than TCP's one-second retransmission timeout, so that a retransmission does not distort the result.
const soon = 100 * time.Millisecond

func greetsAPI(from *cluster.Host) error {
	return from.Do(func() error {
		conn, err := net.DialTimeout("tcp", kubernetesService, soon)
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
