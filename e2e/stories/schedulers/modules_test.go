package schedulers

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// kernelHas tries the scheduler on a host without an agent, which also loads the scheduler's module.
func (w *world) kernelHas(t *testing.T, scheduler string) bool {
	t.Helper()
	const at = "192.0.2.1:9"
	_, err := w.client.Run("ipvsadm", "-A", "-t", at, "-s", scheduler)
	if err != nil {
		if !strings.Contains(err.Error(), "Scheduler or persistence engine not found") {
			t.Fatalf("trying the scheduler %s: %v", scheduler, err)
		}
		return false
	}
	w.client.MustRun(t, "ipvsadm", "-D", "-t", at)
	return true
}

// hide unloads a scheduler's module and prevents loading it until show is called. The modprobe that the kernel
// starts reads only the machine's configuration. A rule there must not outlive this process, so the rule applies only
// while its file is locked.
func (w *world) hide(t *testing.T, scheduler string) (show func()) {
	t.Helper()
	module := "ip_vs_" + scheduler
	rule, err := os.Create("/etc/modprobe.d/kube-ipvs-test-hides-" + module + ".conf")
	if err != nil {
		t.Fatal(err)
	}
	show = sync.OnceFunc(func() {
		if err := os.Remove(rule.Name()); err != nil {
			t.Error(err)
		}
		rule.Close()
	})
	t.Cleanup(show)
	if err := unix.Flock(int(rule.Fd()), unix.LOCK_EX); err != nil {
		t.Fatalf("locking %s: %v", rule.Name(), err)
	}
	if _, err := fmt.Fprintf(rule, "install %s flock --nonblock %s modprobe --ignore-install %[1]s\n", module, rule.Name()); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, patience, "no Service of an earlier test has the scheduler "+scheduler, func() error {
		if _, err := os.Stat("/sys/module/" + module); err != nil {
			return nil
		}
		_, err := w.Router.Run("modprobe", "-r", module)
		return err
	})
	if w.kernelHas(t, scheduler) {
		t.Fatalf("the kernel has the scheduler %s although %s forbids its module; is it built in?", scheduler, rule.Name())
	}
	return show
}
