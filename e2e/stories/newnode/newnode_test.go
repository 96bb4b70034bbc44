package newnode

import (
	"crypto/tls"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
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

const (
	// usableWithin is from the start of the program.
	usableWithin = 2 * time.Second
	// inPlaceWithin is for all Services, and catches what has become far worse.
	inPlaceWithin = 8 * time.Second
	idleShare     = 0.05 // of the CPU
	// auditInterval is the default of --ipvs-sync-period.
	auditInterval = 30 * time.Second
)

// TestNewNode starts the agent on a node of a cluster that has 5,000 Services, and measures how long it takes from the start of
// the program until a pod and a process of the node reach the API server through its Service, and what the agent costs when
// there is nothing to do. (For the process, the node has to masquerade.)
func TestNewNode(t *testing.T) {
	// proves: 151
	labtest.Need(t)
	labtest.FreshKernel(t)
	if mode := os.Getenv("LAB_MODE"); mode != "qemu counted" {
		t.Fatalf("the limits are in a clock that counts instructions, and this lab (%s) has none: run `make new-node`", mode)
	}
	c := cluster.New(t, cluster.Config{Name: "newnode", Nodes: 1, Clients: -1, Families: cluster.IPv4Only})
	api, kubeconfig := populated(t, c)
	node := c.Nodes[0]
	pod := node.Pod(t, "client")
	readAhead(t, node)
	for _, from := range []*cluster.Host{pod.Host, node.Host} {
		if greetsAPI(from) == nil {
			t.Fatalf("%s reaches the API server through its Service before the agent runs: nothing can be measured", from.Name)
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
	t.Logf("CPU of the agent: %s, of programs that it ran: %s", rounded(cpuTime(t, agent.PID)), rounded(childrenTime(t, agent.PID)))

	// Twice the time between two audits, each of which reads the whole kernel.
	used := func() time.Duration { return cpuTime(t, agent.PID) + childrenTime(t, agent.PID) }
	begin, spent := time.Now(), used()
	time.Sleep(2 * auditInterval)
	share := float64(used()-spent) / float64(time.Since(begin))
	t.Logf("idle, with two audits: %.1f%% of the CPU", 100*share)
	if share > idleShare {
		t.Errorf("the idle agent takes %.1f%% of the CPU, want %.1f%% at most", 100*share, 100*idleShare)
	}
	if servers, err := node.VirtualServers(); err != nil || len(servers) <= existing { // these and the API server's
		t.Errorf("the agent said that its initial sync is complete; the kernel has %d virtual servers for more than %d Services (%v)", len(servers), existing, err)
	}
}

// readAhead reads what the node will read from its disk, which here is the host's: where the CPU waits for it, the guest's clock goes by
// the host's.
func readAhead(t *testing.T, node *cluster.Node) {
	t.Helper()
	for _, program := range []string{"iptables-nft-save", "iptables-legacy-save", "modprobe"} {
		node.MustRun(t, program, "--version")
	}
	size := 0
	for _, folder := range []string{os.Getenv("KUBE_IPVS_ROOT") + "/bin", "/lib/modules/" + os.Getenv("LAB_KERNEL") + "/kernel/net"} {
		err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			content, err := os.ReadFile(path)
			size += len(content)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d MB read ahead", size>>20)
}

// stopwatch measures the node. The guest's one CPU is also the API server's, which in a cluster has CPUs of its own: its work is taken off.
type stopwatch struct {
	begin       time.Time
	others      []int
	spent, idle time.Duration
}

func startWatch(t *testing.T, others ...int) *stopwatch {
	t.Helper()
	return &stopwatch{begin: time.Now(), others: others, spent: cpuTime(t, others...), idle: idleTime(t)}
}

func (w *stopwatch) within(t *testing.T, limit time.Duration, what string) {
	t.Helper()
	all, others, idle := time.Since(w.begin), cpuTime(t, w.others...)-w.spent, idleTime(t)-w.idle
	took := all - others
	t.Logf("%s after %s, of which the CPU was idle for %s; with the work of API server and etcd %s", what, rounded(took), rounded(idle), rounded(all))
	if took > limit {
		t.Errorf("%s after %s, want %s at most", what, took, limit)
	}
}

// idleTime is what the CPU has waited so far.
func idleTime(t *testing.T) time.Duration {
	t.Helper()
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text)) // cpu user nice system idle iowait
	return ticks(t, fields[4:6])
}

func rounded(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

// soon is less than the second after which TCP would try again: that must not look like a node that is late.
const soon = 100 * time.Millisecond

// greetsAPI checks that a TLS server answers behind the Service.
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

// childrenTime is what the programs that a process ran and waited for have used: an audit runs iptables-save.
func childrenTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	// The program's name, in parentheses, may hold anything. The two times are the 14th and 15th field behind it.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	return ticks(t, fields[13:15])
}

// ticks adds up CPU times from /proc.
func ticks(t *testing.T, fields []string) time.Duration {
	t.Helper()
	var total time.Duration
	for _, field := range fields {
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatalf("a time in /proc: %v", err)
		}
		total += time.Duration(n) * (time.Second / 100)
	}
	return total
}

// cpuTime is what processes have used so far, by the clock that clock_getcpuclockid(3) names.
func cpuTime(t *testing.T, pids ...int) time.Duration {
	t.Helper()
	const ofProcess = 2
	var total time.Duration
	for _, pid := range pids {
		var used unix.Timespec
		if err := unix.ClockGettime(int32(^pid<<3|ofProcess), &used); err != nil {
			t.Fatalf("CPU time of process %d: %v", pid, err)
		}
		total += time.Duration(used.Nano())
	}
	return total
}
