package explain_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// TestOtherNamespace: explain does not compare an agent's state with the kernel of another network namespace.
func TestOtherNamespace(t *testing.T) {
	w := newWorld(t, web())
	w.kernel.State = kernel.NewState()
	w.view.Node.NetworkNamespace, w.kernel.Namespace = "net:[1]", "net:[2]"
	e := w.ask(clusterIPHTTP, outside)
	if e.Verdict != explain.Unknown || len(e.Reasons) != 1 || !says(e, "net:[1]") || !says(e, "net:[2]") {
		t.Errorf("want one reason that names both namespaces, got\n%s", steps(e))
	}
	w.kernel.Namespace = "net:[1]"
	if e := w.ask(clusterIPHTTP, outside); e.Verdict != explain.Stops || says(e, "net:[1]") {
		t.Errorf("in the same namespace, got\n%s", steps(e))
	}
}

// TestIPv6DisabledOnDevice: explain names the sysctl, and does not promise that the next audit repairs the address.
func TestIPv6DisabledOnDevice(t *testing.T) {
	w := newWorld(t, compiletest.Service("six", "fd00::1", "fd01::1"))
	w.kernel.Sysctls[kernel.IPv6Switch] = "1"
	delete(w.kernel.Addresses, netip.MustParseAddr("fd00::1"))
	e := w.ask("[fd00::1]:80", "fd00:9::9")
	if e.Verdict != explain.Stops || !says(e, "sysctl net/ipv6/conf/kube-ipvs0/disable_ipv6 is 1") || says(e, "repairs it") {
		t.Errorf("got\n%s", steps(e))
	}
}

// TestRepairs: explain promises a repair only if the agent's last full sync may have been able to do it.
func TestRepairs(t *testing.T) {
	w := newWorld(t, web())
	delete(w.kernel.Sets, "KIPVS-4-ALLOWED")
	w.view.Time = w.view.Agent.LastFullSync.Started.Add(12 * time.Second)
	if e := w.ask(clusterIPHTTP, outside); !says(e, "is missing; the agent's next audit repairs it, unless the last one, 12 s ago, could not") {
		t.Errorf("got\n%s", steps(e))
	}
	w.view.Agent.LastFullSync = nil
	if e := w.ask(clusterIPHTTP, outside); !says(e, "is missing; the agent's next audit repairs it") || says(e, "unless") {
		t.Errorf("before the first full sync, got\n%s", steps(e))
	}
}
