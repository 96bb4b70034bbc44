package schedulers

import (
	"strings"
	"testing"

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

// hide unloads a scheduler's module and prevents loading it until show is called.
func (w *world) hide(t *testing.T, scheduler string) (show func()) {
	t.Helper()
	show = cluster.HideModule(t, "ip_vs_"+scheduler)
	if w.kernelHas(t, scheduler) {
		t.Fatalf("the kernel has the scheduler %s although its module is forbidden; is it built in?", scheduler)
	}
	return show
}
