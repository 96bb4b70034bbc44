package drain

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// TestClocksFollowDestinations: an incremental sync visits only the destinations that it wrote, and the clocks are the same as if it had visited all.
func TestClocksFollowDestinations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, now := NewClocks(), start
		wanted, have := map[netip.AddrPort]uint32{}, map[netip.AddrPort]uint32{}
		for range 20 {
			now = now.Add(time.Second)
			addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, rapid.ByteRange(1, 5).Draw(t, "pod")}), 80)
			for _, weights := range []map[netip.AddrPort]uint32{wanted, have} {
				if weights[addr] = rapid.Uint32Range(0, 1).Draw(t, "weight"); rapid.Bool().Draw(t, "gone") {
					delete(weights, addr)
				}
			}
			op := kernel.Op{Verb: kernel.Update, Object: kernel.ServerDestination{Server: key, Destination: kernel.Destination{Addr: addr}}}
			p := Pass{Target: wanting(sorted(wanted)...), Have: kernel.NewState(), Plan: diff.Plan{Phases: []diff.Phase{{Ops: []kernel.Op{op}}}}}
			server := kernel.ObservedServer{Server: kernel.Server{Key: key}}
			for _, d := range sorted(have) {
				server.Destinations = append(server.Destinations, kernel.ObservedDestination{Destination: d})
			}
			p.Have.Servers[key] = server
			c.Update(now, time.Hour, p)
			got := slices.SortedFunc(maps.Keys(c.Of(key)), netip.AddrPort.Compare)
			if all := draining(p, key); !slices.Equal(got, all) || c.Count() != len(all) {
				t.Fatalf("the clocks of %v run (count %d), but %v drain", got, c.Count(), all)
			}
		}
	})
}

func sorted(weights map[netip.AddrPort]uint32) (ds []kernel.Destination) {
	for _, addr := range slices.SortedFunc(maps.Keys(weights), netip.AddrPort.Compare) {
		ds = append(ds, kernel.Destination{Addr: addr, Weight: weights[addr]})
	}
	return ds
}
