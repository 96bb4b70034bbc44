package compile

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

func TestMergingRunsSortsStably(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []Endpoint
		for _, port := range rapid.SliceOf(rapid.Uint16Range(1, 9)).Draw(t, "ports") {
			all = append(all, Endpoint{Addr: netip.AddrPortFrom(netip.IPv4Unspecified(), port), Endpoint: &model.Endpoint{}})
		}
		compare := func(a, b Endpoint) int { return a.Addr.Compare(b.Addr) }
		want := slices.Clone(all)
		slices.SortStableFunc(want, compare)
		if got := mergeRuns(all, compare); !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

// TestReplacedEndpointsAreCounted: after any change to a Service's slices, the count of each address is the number of times that it occurs in the new
// version.
func TestReplacedEndpointsAreCounted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pool := make([]*model.EndpointSlice, 4)
		for i := range pool {
			pool[i] = &model.EndpointSlice{}
			for _, last := range rapid.SliceOfN(rapid.ByteRange(1, 5), 0, 6).Draw(t, "endpoints") {
				pool[i].Endpoints = append(pool[i].Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 0, 0, last})})
			}
		}
		v := newVirtual()
		var old *model.Service
		for range 5 {
			var next *model.Service
			want := map[shortAddr]int32{}
			if rapid.Bool().Draw(t, "exists") {
				next = &model.Service{Slices: rapid.SliceOfN(rapid.SampledFrom(pool), 0, 4).Draw(t, "slices")}
				for _, slice := range next.Slices {
					for _, e := range slice.Endpoints {
						want[shorten(e.Addr)]++
					}
				}
			}
			v.replaceEndpoints(old, next)
			if old = next; !maps.Equal(v.endpoints, want) {
				t.Fatalf("got %v, want %v", v.endpoints, want)
			}
		}
	})
}
