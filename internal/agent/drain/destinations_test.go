package drain

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// TestClocksFollowDestinations: an incremental sync visits only the destinations that its plan names, and the clocks are the same as if it had visited all.
// It copies the clocks only if a reader has them.
func TestClocksFollowDestinations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, now := NewClocks(), start
		wanted, have := map[netip.AddrPort]uint32{}, map[netip.AddrPort]uint32{}
		var read, asRead Clock
		for range 20 {
			now = now.Add(time.Second)
			addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, rapid.ByteRange(1, 5).Draw(t, "pod")}), 80)
			for _, weights := range []map[netip.AddrPort]uint32{wanted, have} {
				if weights[addr] = rapid.Uint32Range(0, 1).Draw(t, "weight"); rapid.Bool().Draw(t, "gone") {
					delete(weights, addr)
				}
			}
			d := kernel.ServerDestination{Server: key, Destination: kernel.Destination{Addr: addr}}
			plan := diff.Plan{Phases: []diff.Phase{{Ops: []kernel.Op{{Verb: kernel.Update, Object: d}}}}}
			if rapid.Bool().Draw(t, "without an operation") {
				plan = diff.Plan{AtZero: []kernel.ServerDestination{d}}
			}
			p := Pass{Target: wanting(sorted(wanted)...), Have: kernel.NewState(), Plan: plan}
			server := kernel.ObservedServer{Server: kernel.Server{Key: key}}
			for _, d := range sorted(have) {
				server.Destinations = append(server.Destinations, kernel.ObservedDestination{Destination: d})
			}
			p.Have.Servers[key] = server
			if rapid.Bool().Draw(t, "read") {
				read = c.Of(key)
				asRead = maps.Clone(read)
			}
			held, shared := c.servers[key], len(c.shared) > 0
			c.Update(now, time.Hour, p)
			if !maps.Equal(read, asRead) {
				t.Fatalf("a reader's clocks changed from %v to %v", asRead, read)
			}
			if next := c.servers[key]; len(held) > 0 && len(next) > 0 && !shared && reflect.ValueOf(held).Pointer() != reflect.ValueOf(next).Pointer() {
				t.Fatal("the clocks were copied without a reader")
			}
			got := slices.SortedFunc(maps.Keys(c.servers[key]), netip.AddrPort.Compare)
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
