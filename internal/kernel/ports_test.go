package kernel

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func drawPorts(t *rapid.T, label string) Ports {
	ranges := rapid.Custom(func(t *rapid.T) PortRange {
		first := rapid.Uint16().Draw(t, "first")
		return PortRange{first, rapid.Uint16Min(first).Draw(t, "last")}
	})
	return rapid.SliceOf(ranges).Draw(t, label)
}

func TestPortsOfTwoLists(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all, others := drawPorts(t, "all"), drawPorts(t, "others")
		without, common, with := all.Without(others), all.Common(others), all.With(others)
		for port := range 1 << 16 {
			p := uint16(port)
			a, o := all.Contain(p), others.Contain(p)
			if without.Contain(p) != (a && !o) || common.Contain(p) != (a && o) || with.Contain(p) != (a || o) {
				t.Fatalf("%v and %v: port %d is in without: %t, common: %t, with: %t", all, others, p, without.Contain(p), common.Contain(p), with.Contain(p))
			}
		}
		for i := range len(with) - 1 {
			if int(with[i].Last)+1 >= int(with[i+1].First) {
				t.Fatalf("%v with %v is not sorted, or has more ranges than necessary: %v", all, others, with)
			}
		}
		if again, err := ParsePorts(with.String()); err != nil || !slices.Equal(again, with) {
			t.Fatalf("%q is parsed as %v, %v", with, again, err)
		}
	})
}

func TestParsePorts(t *testing.T) {
	want := Ports{{8080, 8080}, {9000, 9010}}
	if got, err := ParsePorts("8080,9000-9010"); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for _, text := range []string{"x", "3-", "-3", "70000", "1-2-3"} {
		if got, err := ParsePorts(text); err == nil {
			t.Errorf("%q: %v, want an error", text, got)
		}
	}
}
