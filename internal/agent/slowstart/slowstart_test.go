package slowstart

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

var (
	start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	key   = kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: inet.TCP}
	first = netip.MustParseAddrPort("10.244.0.1:80")
	added = netip.MustParseAddrPort("10.244.0.2:80")
	third = netip.MustParseAddrPort("10.244.0.3:80")
)

// wanted returns a virtual server with two endpoints of weight 10 and a slow start of ten seconds: one step per
// second.
func wanted() (*want.State, *want.Server) {
	w := want.New(want.Base{})
	server := want.Server{
		Server: kernel.Server{Key: key}, SlowStart: 10 * time.Second,
		Destinations: []kernel.Destination{{Addr: first, Weight: 10}, {Addr: added, Weight: 10}},
	}
	w.Replace(nil, want.Fragment{server}, want.NewTouched())
	return w, w.Servers[key]
}

func holding(weight uint32) *kernel.State {
	server := kernel.ObservedServer{Server: kernel.Server{Key: key}, Destinations: []kernel.ObservedDestination{
		{Destination: kernel.Destination{Addr: first, Weight: 10}},
		{Destination: kernel.Destination{Addr: added, Weight: weight}},
	}}
	return &kernel.State{Servers: map[kernel.ServerKey]kernel.ObservedServer{key: server}}
}

func TestWeightRisesInEqualSteps(t *testing.T) {
	w, server := wanted()
	r := New()
	r.Update(start, key, w.Servers[key], holding(0))
	for step := range 12 {
		now := start.Add(time.Duration(step) * time.Second)
		if got, want := r.Of(key).Weight(now, server, server.Destinations[1]), uint32(min(step+1, 10)); got != want {
			t.Errorf("got weight %[2]d after %[1]d s, want %[3]d", step, got, want)
		}
		if got := r.Of(key).Weight(now, server, server.Destinations[0]); got != 10 {
			t.Errorf("after %d s, the other endpoint has weight %d", step, got)
		}
	}
	if r.Next() != start.Add(time.Second) || r.Due(start) || !r.Due(start.Add(time.Second)) {
		t.Errorf("the next step is at %v", r.Next())
	}
}

func TestRampContinuesFromTheWeightInTheKernel(t *testing.T) {
	w, server := wanted()
	r := New()
	r.UpdateAll(start, maps.All(w.Servers), holding(4))
	if got := r.Of(key).Weight(start, server, server.Destinations[1]); got != 4 {
		t.Errorf("got weight %d, want the kernel's", got)
	}
	if got := r.Of(key).Weight(start.Add(time.Second), server, server.Destinations[1]); got != 5 {
		t.Errorf("got weight %d after a step", got)
	}
}

func TestNewVirtualServerStartsWithFullWeights(t *testing.T) {
	w, _ := wanted()
	r := New()
	r.UpdateAll(start, maps.All(w.Servers), &kernel.State{})
	if r.Of(key) != nil || !r.Next().IsZero() {
		t.Errorf("got ramp %v and next step at %v", r.Of(key), r.Next())
	}
}

func TestRampEndsWithItsVirtualServer(t *testing.T) {
	w, _ := wanted()
	r := New()
	r.UpdateAll(start, maps.All(w.Servers), holding(0))
	r.UpdateAll(start, maps.All(want.New(want.Base{}).Servers), holding(0))
	if r.Of(key) != nil || !r.Next().IsZero() {
		t.Errorf("ramp %v", r.Of(key))
	}
}

func TestStepsAreTakenWhenDue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, have, r, now := want.New(want.Base{}), &kernel.State{Servers: map[kernel.ServerKey]kernel.ObservedServer{}}, New(), start
		var keys []kernel.ServerKey
		for i := range rapid.IntRange(1, 8).Draw(t, "virtual servers") {
			keys = append(keys, numbered(w, have, i, time.Duration(rapid.IntRange(1, 60).Draw(t, "slow start"))*time.Second))
		}
		next := map[kernel.ServerKey]time.Time{}
		for range rapid.IntRange(1, 30).Draw(t, "syncs") {
			now = now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "later")) * time.Millisecond)
			var due []kernel.ServerKey
			for key, at := range next {
				if !now.Before(at) {
					due = append(due, key)
				}
			}
			taken := r.TakeDue(now)
			slices.SortFunc(due, kernel.ServerKey.Compare)
			slices.SortFunc(taken, kernel.ServerKey.Compare)
			if !slices.Equal(taken, due) || r.Due(now) {
				t.Fatalf("TakeDue returned %v, want %v", taken, due)
			}
			touched := slices.Concat(taken, rapid.SliceOf(rapid.SampledFrom(keys)).Draw(t, "touched"))
			for _, key := range touched {
				have.Servers[key].Destinations[0].Weight = uint32(rapid.IntRange(0, 10).Draw(t, "weight"))
			}
			for _, key := range touched {
				r.Update(now, key, w.Servers[key], have)
			}
			for _, key := range touched {
				delete(next, key)
				if rises(r, w.Servers[key], now) {
					next[key] = (&rising{ramp: r.Of(key), step: stepOf(w.Servers[key].SlowStart)}).stepAfter(now)
				}
			}
			var earliest time.Time
			for _, at := range next {
				if earliest.IsZero() || at.Before(earliest) {
					earliest = at
				}
			}
			if !r.Next().Equal(earliest) {
				t.Fatalf("the next step is at %v, want %v", r.Next(), earliest)
			}
		}
	})
}

func rises(r *Ramps, server *want.Server, now time.Time) bool {
	began, ramps := r.Of(server.Key)[added]
	return ramps && now.Before(began.Add(server.SlowStart))
}

// A destination whose last step failed is still below its weight, perhaps forever. It keeps its time, but needs no further syncs.
func TestSlowStartsEnd(t *testing.T) {
	w, server := wanted()
	r := New()
	r.Update(start, key, server, holding(0))
	for second := 1; second <= 10; second++ {
		now := start.Add(time.Duration(second) * time.Second)
		if due := r.TakeDue(now); len(due) != 1 {
			t.Fatalf("%d s: %d steps are due", second, len(due))
		}
		r.Update(now, key, server, holding(0))
	}
	late := start.Add(time.Hour)
	if r.Update(late, key, server, holding(0)); !r.Next().IsZero() || r.Of(key).Weight(late, server, server.Destinations[1]) != 10 {
		t.Errorf("the next step is at %v, and the weight is %d", r.Next(), r.Of(key).Weight(late, server, server.Destinations[1]))
	}
	w.Servers[key].Destinations = append(w.Servers[key].Destinations, kernel.Destination{Addr: third, Weight: 10})
	if r.Update(late, key, server, holding(0)); !r.Next().Equal(late.Add(time.Second)) {
		t.Errorf("a third endpoint's next step is at %v", r.Next())
	}
	r.Update(late, key, nil, holding(0))
	if r.UpdateAll(late, maps.All(w.Servers), holding(10)); len(r.queue) != 1 {
		t.Errorf("%d virtual servers are in the queue", len(r.queue))
	}
}

// A sync evaluates only the ramps of virtual servers that it touches or whose next step is due. If the sync evaluated
// the other virtual servers in this test, they would step immediately.
func TestOtherRampsAreNotRead(t *testing.T) {
	w, have, r := want.New(want.Base{}), &kernel.State{Servers: map[kernel.ServerKey]kernel.ObservedServer{}}, New()
	touched, due := numbered(w, have, 0, 20*time.Second), numbered(w, have, 1, 20*time.Second)
	r.Update(start, touched, w.Servers[touched], have)
	r.Update(start, due, w.Servers[due], have)
	for i := range 1000 {
		key := numbered(w, have, 2+i, time.Minute)
		r.Update(start, key, w.Servers[key], have)
		for second := range 5 {
			r.Of(key)[netip.AddrPortFrom(added.Addr(), uint16(second))] = start.Add(time.Duration(second)*time.Second + time.Millisecond - stepOf(time.Minute))
		}
	}
	for second, steps := range []int{0, 0, 2, 0, 2} {
		now := start.Add(time.Duration(second) * time.Second)
		if taken := r.TakeDue(now); len(taken) != steps {
			t.Errorf("second %d: steps of %v are due, want %d", second, taken, steps)
		}
		r.Update(now, touched, w.Servers[touched], have)
		if next := start.Add(time.Duration(second/2*2+2) * time.Second); !r.Next().Equal(next) {
			t.Errorf("second %d: the next step is at %v, want %v", second, r.Next(), next)
		}
	}
}

func numbered(w *want.State, have *kernel.State, n int, slowStart time.Duration) kernel.ServerKey {
	k := kernel.ServerKey{Addr: netip.AddrPortFrom(key.Addr.Addr(), uint16(1000+n)), Protocol: inet.TCP}
	w.Replace(nil, want.Fragment{{Server: kernel.Server{Key: k}, SlowStart: slowStart, Destinations: []kernel.Destination{{Addr: added, Weight: 10}}}}, want.NewTouched())
	have.Servers[k] = kernel.ObservedServer{
		Server: kernel.Server{Key: k}, Destinations: []kernel.ObservedDestination{{Destination: kernel.Destination{Addr: added, Weight: 0}}},
	}
	return k
}
