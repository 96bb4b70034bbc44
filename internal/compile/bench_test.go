package compile_test

import (
	"fmt"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
)

func BenchmarkCompile(b *testing.B) {
	for _, services := range []int{1_000, 10_000, 50_000} {
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			many, config, around := compiletest.Many(services, 10), compiletest.Config(), compiletest.At()
			b.ReportAllocs()
			for b.Loop() {
				compiletest.Cluster(config, many, around).Want()
			}
		})
	}
}
