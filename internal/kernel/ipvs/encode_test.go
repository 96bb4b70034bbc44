package ipvs

import "testing"

func TestEncodingAllocatesLittle(t *testing.T) {
	backend, ops := &Backend{}, benchOps()[:1+benchDestinations]
	n := testing.AllocsPerRun(10, func() {
		for _, op := range ops {
			if _, err := backend.encode(op); err != nil {
				t.Fatal(err)
			}
		}
	})
	if n > float64(4*len(ops)) {
		t.Errorf("%d operations need %.0f allocations", len(ops), n)
	}
}

func BenchmarkEncode(b *testing.B) {
	backend, ops := &Backend{}, benchOps()[:1+benchDestinations]
	b.ReportAllocs()
	for b.Loop() {
		for _, op := range ops {
			if _, err := backend.encode(op); err != nil {
				b.Fatal(err)
			}
		}
	}
}
