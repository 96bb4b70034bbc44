package services

import (
	"fmt"
	"os/exec"
	"syscall"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// TestReloadedModule unloads the module ip_vs and loads it again while the agent is suspended. The module then has another netlink family number,
// which the agent must look up again to restore its virtual servers.
func TestReloadedModule(t *testing.T) {
	labtest.Need(t)
	if !cluster.Balancing() {
		t.Skip("other agents of this run use ip_vs, so it cannot be unloaded")
	}
	m := newMoveStage(t)
	agent := m.start(t, "--data-plane=ipvs")
	m.await(t)
	state := func() string {
		return kernelState(t, m.node) + m.node.MustRun(t, "sysctl", "net.ipv4.vs.conntrack", "net.ipv4.vs.expire_nodest_conn", "net.ipv4.vs.conn_reuse_mode")
	}
	want := state()
	signal := func(s syscall.Signal) {
		if err := agent.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP)
	m.node.MustRun(t, "ipvsadm", "-C")
	cluster.HideModule(t, "ip_vs")()
	if out, err := exec.Command("modprobe", "ip_vs").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	signal(syscall.SIGCONT)
	m.await(t)
	cluster.Eventually(t, patience, "everything is restored", func() error {
		if got := state(); got != want {
			return fmt.Errorf("the state is\n%s\nwant\n%s", got, want)
		}
		return nil
	})
}

func (m *moveStage) await(t *testing.T) {
	t.Helper()
	for from, addrs := range m.paths() {
		for _, at := range addrs {
			for _, p := range m.ports {
				from.Await(t, patience, p.Protocol, at)
			}
		}
	}
}
