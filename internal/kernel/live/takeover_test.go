package live

import (
	"context"
	"os/exec"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// The first operation that creates anything marks kube-proxy's device. Reads, removals and sysctl settings do not.
func TestTakeOver(t *testing.T) {
	labtest.Need(t)
	k := open(t, iptables.NFT)
	labtest.Run(t, "ip", "link", "add", kernel.Device, "type", "dummy")
	if _, err := k.Read(context.Background()); err != nil {
		t.Fatal(err)
	}
	set := kernel.Set{Name: kerneltest.SetPrefix + "A", Family: inet.IPv4}
	for _, step := range []struct {
		op     kernel.Op
		marked bool
	}{
		{kernel.Op{Verb: kernel.Ensure, Object: kernel.SysctlSetting{Name: kerneltest.Sysctls[0], Value: "1"}}, false},
		{kernel.Op{Verb: kernel.Delete, Object: set}, false},
		{kernel.Op{Verb: kernel.Create, Object: set}, true},
	} {
		k.Apply(context.Background(), []kernel.Op{step.op})
		marked := exec.Command("sh", "-c", "ip link show dev kube-ipvs0 | grep -q 'alias kube-ipvs$'").Run() == nil
		if marked != step.marked {
			t.Errorf("after %s: the device has the mark: %t", step.op, marked)
		}
	}
}
