package kernel

import (
	"net/netip"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

// TestOperationsInProcess: in user space, no operation is described as a command that would do something else.
func TestOperationsInProcess(t *testing.T) {
	at := ServerKey{Addr: netip.MustParseAddrPort("10.96.0.10:80"), Protocol: inet.TCP}
	endpoint := ServerDestination{Server: at, Destination: Destination{Addr: netip.MustParseAddrPort("10.244.1.5:8080"), Weight: 2}}
	for want, op := range map[string]Op{
		"add kube-ipvs0, which leads to the agent's process":                  {Create, DummyDevice{}},
		"add route 10.96.0.10 dev kube-ipvs0 proto 117":                       {Create, BoundAddress{Addr: at.Addr.Addr()}},
		"remove port 10.96.0.10:80/tcp of the process":                        {Delete, Server{Key: at}},
		"change endpoint 10.244.1.5:8080 of port 10.96.0.10:80/tcp, weight 2": {Update, endpoint},
		"remove endpoint 10.244.1.5:8080 of port 10.96.0.10:80/tcp":           {Delete, endpoint},
		"add set NO-LOCAL in the process":                                     {Create, Set{Name: "NO-LOCAL"}},
		"add 10.96.0.10,tcp:80 in set NO-LOCAL of the process":                {Create, Member{Set: "NO-LOCAL", Element: Element{Addr: at.Addr.Addr(), Protocol: inet.TCP, Port: 80}}},
		"sysctl -w net/ipv4/ip_forward=1":                                     {Ensure, SysctlSetting{Name: "net/ipv4/ip_forward", Value: "1"}},
	} {
		if got := op.In(Userspace); got != want {
			t.Errorf("%s: %q, want %q", op, got, want)
		}
	}
}
