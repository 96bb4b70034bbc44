package agent_test

import (
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

func tcp(addr string) kernel.ServerKey {
	return kernel.ServerKey{Addr: netip.MustParseAddrPort(addr), Protocol: inet.TCP}
}

func serverAt(key kernel.ServerKey) kernel.Server {
	return kernel.Server{Key: key, Scheduler: "rr", MaskBits: uint8(key.Family().Bits())}
}

func to(addr string, weight uint32) kernel.Destination {
	return kernel.Destination{Addr: netip.MustParseAddrPort(addr), Weight: weight}
}

func entry(key kernel.ServerKey) kernel.Member {
	return want.LedgerEntry(compile.Base(compiletest.Config()).Ledger, key)
}

func foreign(key kernel.ServerKey) func(*kerneltest.Fake) error {
	return func(f *kerneltest.Fake) error { return f.AddServer(serverAt(key), to("192.168.1.1:9", 3)) }
}

func done(reports ...agent.Report) []string {
	list := []string{}
	for _, r := range reports {
		for _, result := range r.Results {
			if result.Err == nil {
				list = append(list, result.Op.String())
			}
		}
	}
	return list
}
