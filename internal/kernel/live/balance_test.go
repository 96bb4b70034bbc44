package live

import (
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft"
)

func TestConformanceOfBalancing(t *testing.T) {
	kerneltest.Conformance(t, func(t *testing.T) kerneltest.Subject {
		labtest.NetNS(t)
		return kerneltest.Subject{Kernel: openConfig(t, Config{Mode: kernel.NFTablesOnly}), Admin: kerneltest.NFTCommands{Table: nft.Table}, OwnTable: true, Balanced: true}
	})
}
