package kernel

import (
	"testing"

	"pgregory.net/rapid"
)

func TestPortsWithout(t *testing.T) {
	ranges := rapid.Custom(func(t *rapid.T) PortRange {
		first := rapid.Uint16().Draw(t, "first")
		return PortRange{first, rapid.Uint16Min(first).Draw(t, "last")}
	})
	rapid.Check(t, func(t *rapid.T) {
		all, others := Ports(rapid.SliceOf(ranges).Draw(t, "all")), Ports(rapid.SliceOf(ranges).Draw(t, "others"))
		left := all.Without(others)
		for port := range 1 << 16 {
			if p := uint16(port); left.Contain(p) != (all.Contain(p) && !others.Contain(p)) {
				t.Fatalf("%v without %v contains %d: %t", all, others, p, left.Contain(p))
			}
		}
	})
}
