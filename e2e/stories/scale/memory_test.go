package scale

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
	"github.com/kube-ipvs/kube-ipvs/internal/watch/watchtest"
)

// The idle agent must use no more memory than docs/install.md states.
func TestMemory(t *testing.T) {
	for _, c := range []struct{ services, most int }{{1_000, 64 << 10}, {5_000, 128 << 10}} {
		t.Run(fmt.Sprint(c.services, " Services"), func(t *testing.T) {
			labtest.NetNS(t)
			api := watchtest.New(t)
			api.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here"}, Status: corev1.NodeStatus{
				Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}},
			}})
			for i := range c.services {
				var addrs []string
				for n := range endpoints {
					addrs = append(addrs, fmt.Sprintf("10.%d.%d.%d", 128+i/250, i%250, n+1))
				}
				api.Put(apiService(i), apiSlice(i, addrs...))
			}
			agent := startAgent(t, api)
			started := agent.memory(t)
			idle := agent.settled(t)
			t.Attr("figure", fmt.Sprintf("%d Services: %d MB after the first sync, %d MB once idle", c.services, started>>10, idle>>10))
			if idle > c.most {
				t.Errorf("an idle agent with %d Services uses %d kB of anonymous memory, want at most %d", c.services, idle, c.most)
			}
		})
	}
}

type process struct{ *exec.Cmd }

func startAgent(t *testing.T, api *watchtest.Server) process {
	t.Helper()
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	err := os.WriteFile(kubeconfig, fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Config", "current-context": "it",
"contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}], "users": [{"name": "it", "user": {}}],
"clusters": [{"name": "it", "cluster": {"server": %q, "insecure-skip-tls-verify": true}}]}`, api.Start().URL), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	p := process{exec.Command(cluster.AgentBinary(t), "run", "--kubeconfig", kubeconfig, "--hostname-override", "here")}
	log := new(strings.Builder)
	p.Stdout, p.Stderr = log, log
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Process.Kill()
		_ = p.Wait()
		if t.Failed() {
			t.Log(log)
		}
	})
	cluster.Eventually(t, time.Minute, "the agent is ready", func() error { return ready("127.0.0.1:10256") })
	return p
}

// ready dials on this goroutine, because it is in the right network namespace.
func ready(address string) error {
	conn, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if _, err := fmt.Fprint(conn, "GET /readyz HTTP/1.0\r\n\r\n"); err != nil {
		return err
	}
	answer := make([]byte, 64)
	n, err := conn.Read(answer)
	if err != nil {
		return err
	}
	if line, _, _ := strings.Cut(string(answer[:n]), "\r\n"); !strings.Contains(line, " 200 ") {
		return fmt.Errorf("/readyz: %s", line)
	}
	return nil
}

// memory returns the process's anonymous memory in kB.
func (p process) memory(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(line, "RssAnon:"); found {
			kB, err := strconv.Atoi(strings.Fields(value)[0])
			if err != nil {
				t.Fatal(err)
			}
			return kB
		}
	}
	t.Fatalf("no RssAnon in %s", text)
	return 0
}

// settled waits up to three minutes until the memory has changed by less than 5% for 20 seconds.
func (p process) settled(t *testing.T) (kB int) {
	t.Helper()
	last, since := p.memory(t), time.Now()
	for deadline := time.Now().Add(3 * time.Minute); time.Since(since) < 20*time.Second && time.Now().Before(deadline); time.Sleep(time.Second) {
		if kB = p.memory(t); kB > last+last/20 || kB < last-last/20 {
			last, since = kB, time.Now()
		}
	}
	return kB
}
