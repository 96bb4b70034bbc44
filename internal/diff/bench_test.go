package diff_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// BenchmarkFull plans a full sync for a kernel that already contains all Services, and for an empty kernel.
func BenchmarkFull(b *testing.B) {
	for _, services := range []int{1_000, 10_000, 50_000} {
		w := diff.NewTarget(clusterWith(compiletest.Many(services, 10)).Want())
		empty, same := newFake(), newFake()
		for i, err := range same.Apply(context.Background(), slices.Collect(plan(w, empty.State(), read()).All)) {
			if err != nil {
				b.Fatal(i, err)
			}
		}
		for _, c := range []struct {
			what string
			have *kernel.State
		}{{"nothing differs", same.State()}, {"everything differs", empty.State()}} {
			b.Run(fmt.Sprint(services, " ", c.what), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					plan(w, c.have, read())
				}
			})
		}
	}
}

// BenchmarkParts divides the plan of a new node that has already written what all Services depend on.
func BenchmarkParts(b *testing.B) {
	for _, services := range []int{1_000, 10_000} {
		w := diff.NewTarget(clusterWith(compiletest.Many(services, 10)).Want())
		p := plan(w, newFake().State(), read()).Without(func(op kernel.Op) bool {
			m, isMember := op.Object.(kernel.Member)
			return isMember && m.Element.Addr.IsLoopback() || !isMember && !aboutService[op.KindOf()]
		})
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if n := len(p.Parts(1024, w, nil)); n < services/100 {
					b.Fatalf("%d parts", n)
				}
			}
		})
	}
}

var aboutService = map[kernel.Kind]bool{kernel.KindServer: true, kernel.KindDestination: true, kernel.KindAddress: true}
