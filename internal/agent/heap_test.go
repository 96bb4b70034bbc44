package agent

import (
	"context"
	"runtime"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
)

func liveHeap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// The figure includes neither the Services themselves nor what the fake of the kernel holds.
func TestAgentHoldsLittle(t *testing.T) {
	const services = 10_000
	many := oneList(compiletest.Many(services, 10))
	before := liveHeap()
	cfg := Config{Compile: compiletest.Config(), AuditInterval: time.Hour}
	a := New(cfg, many, instant{kerneltest.New(compile.Chains...)}, zap.NewNop())
	a.sync(context.Background())
	if held := (liveHeap() - before) / services; held > 5000 {
		t.Errorf("the agent holds %d bytes for each Service with 10 endpoints", held)
	}
	runtime.KeepAlive(a)
	runtime.KeepAlive(many)
}
