package compile_test

import (
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
)

// If source ranges are nested, the set contains only the outermost range. It admits the clients of all nested ranges.
func TestNestedSourceRanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		drawAddr := func(name string) netip.Addr {
			return netip.AddrFrom4([4]byte{203, 0, 113, rapid.Byte().Draw(t, name)})
		}
		svc := compiletest.Service("web", "10.96.0.1", "10.244.0.1")
		svc.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("203.0.113.77")}
		for range rapid.IntRange(1, 6).Draw(t, "ranges") {
			r := netip.PrefixFrom(drawAddr("range"), rapid.IntRange(22, 32).Draw(t, "bits")).Masked()
			svc.SourceRanges = append(svc.SourceRanges, r)
		}
		slices.SortFunc(svc.SourceRanges, netip.Prefix.Compare)
		var ranges []netip.Prefix
		for m := range scratch(services{svc.ID: svc}).Want().Members {
			if m.Set == compile.SetPrefix+"4-ALLOWED" {
				ranges = append(ranges, netip.PrefixFrom(m.Element.Addr2, int(m.Element.Bits2)))
			}
		}
		within := func(a netip.Addr, list []netip.Prefix) bool {
			return slices.ContainsFunc(list, func(r netip.Prefix) bool { return r.Contains(a) })
		}
		for i, r := range ranges {
			if slices.ContainsFunc(ranges[:i], r.Overlaps) {
				t.Errorf("%v: %s overlaps another range", svc.SourceRanges, r)
			}
		}
		if client := drawAddr("client"); within(client, ranges) != within(client, svc.SourceRanges) {
			t.Errorf("source ranges %v: the set has %v, which is wrong for client %s", svc.SourceRanges, ranges, client)
		}
	})
}
