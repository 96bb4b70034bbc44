package node

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func key(i int) kernel.ServerKey {
	return kernel.ServerKey{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 80), Protocol: inet.TCP}
}

func endpoint(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), 8080)
}

// TestHourIsTheSumOfItsMinutes: an hour contains exactly the traffic of the last 60 minutes, even if readings are irregular and virtual
// servers appear, disappear or reset their counters.
func TestHourIsTheSumOfItsMinutes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newHour()
		model := map[place]map[int64]float32{}
		minute := int64(1000)
		before := inspect.Counts(nil)
		for range rapid.IntRange(1, 40).Draw(t, "readings") {
			minute += rapid.SampledFrom([]int64{0, 0, 1, 1, 2, 30, 59, 60, 61, 200}).Draw(t, "pause")
			now := inspect.Counts{}
			for s := range 3 {
				if !rapid.Bool().Draw(t, "exists") {
					continue
				}
				total := kernel.Traffic{Endpoints: map[netip.AddrPort]kernel.TableDestination{}}
				for e := range 2 {
					n := before[key(s)].Endpoints[endpoint(e)].Stats.Connections
					if rapid.IntRange(0, 9).Draw(t, "restart") == 0 {
						n = 0
					}
					n += rapid.SampledFrom([]uint64{0, 0, 1, 5}).Draw(t, "connections")
					total.Endpoints[endpoint(e)] = kernel.TableDestination{Stats: kernel.Counters{Connections: n}}
					was, known := before[key(s)]
					if grown := n - was.Endpoints[endpoint(e)].Stats.Connections; known && n >= was.Endpoints[endpoint(e)].Stats.Connections {
						add(model, place{key(s), endpoint(e)}, minute, grown)
					} else if known {
						add(model, place{key(s), endpoint(e)}, minute, n)
					}
				}
				now[key(s)] = total
			}
			h.add(time.Unix(minute*60+17, 0), before, now)
			before = now
			for at, minutesOf := range model {
				for i, got := range h.of(at) {
					if want := minutesOf[minute-minutes+1+int64(i)]; got.Connections != want {
						t.Fatalf("%v, %d minutes ago: got %v connections, want %v", at, minutes-1-i, got.Connections, want)
					}
				}
			}
		}
	})
}

func add(model map[place]map[int64]float32, at place, minute int64, n uint64) {
	if model[at] == nil {
		model[at] = map[int64]float32{}
	}
	model[at][minute] += float32(n)
}

// TestHourIsBounded: busy endpoints beyond the limit get no series and are only counted. Endpoints that are idle for an hour lose their
// series.
func TestHourIsBounded(t *testing.T) {
	h := newHour()
	reading := func(first, n int, connections uint64) inspect.Counts {
		traffic := kernel.Traffic{Endpoints: map[netip.AddrPort]kernel.TableDestination{}}
		for e := first; e < first+n; e++ {
			traffic.Endpoints[endpoint(e)] = kernel.TableDestination{Stats: kernel.Counters{Connections: connections}}
		}
		return inspect.Counts{key(1): traffic}
	}
	began := time.Unix(60_000, 0)
	h.add(began, reading(0, maxSeries+7, 0), reading(0, maxSeries+7, 1))
	if len(h.series) != maxSeries || h.left != 7 {
		t.Errorf("got %d series and %d left, want %d and 7", len(h.series), h.left, maxSeries)
	}
	h.add(began.Add(2*time.Hour), reading(0, 10, 1), reading(0, 10, 2))
	if len(h.series) != 10 || h.left != 0 {
		t.Errorf("after two hours, got %d series and %d left, want 10 and 0", len(h.series), h.left)
	}
	if fmt.Sprint(sum(h.of(place{key(1), endpoint(3)}))) != "{1 0 0}" {
		t.Error(h.of(place{key(1), endpoint(3)}))
	}
}
