package slowstart

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

var (
	start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	key   = kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: inet.TCP}
	first = netip.MustParseAddrPort("10.244.0.1:80")
	added = netip.MustParseAddrPort("10.244.0.2:80")
)

// wanted has two endpoints of weight 10 and a slow start of ten seconds, so one step per second.
func wanted() (*want.State, *want.Server) {
	w := want.New(want.Base{})
	server := want.Server{
		Server: kernel.Server{Key: key}, SlowStart: 10 * time.Second,
		Destinations: []kernel.Destination{{Addr: first, Weight: 10}, {Addr: added, Weight: 10}},
	}
	w.Replace(nil, want.Fragment{server}, want.NewTouched())
	return w, w.Servers[key]
}

// holding is a kernel in which the added endpoint has this weight.
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
	r.Update(start, slices.Values([]kernel.ServerKey{key}), w, holding(0))
	for step := range 12 {
		now := start.Add(time.Duration(step) * time.Second)
		if got, want := r.Of(key).Weight(now, server, server.Destinations[1]), uint32(min(step+1, 10)); got != want {
			t.Errorf("after %d s: weight %d, want %d", step, got, want)
		}
		if got := r.Of(key).Weight(now, server, server.Destinations[0]); got != 10 {
			t.Errorf("after %d s: the other endpoint has weight %d", step, got)
		}
	}
	if r.Next() != start.Add(time.Second) || r.Due(start) || !r.Due(start.Add(time.Second)) {
		t.Errorf("next step at %v", r.Next())
	}
}

func TestRampContinuesFromTheWeightInTheKernel(t *testing.T) {
	w, server := wanted()
	r := New()
	r.UpdateAll(start, w, holding(4))
	if got := r.Of(key).Weight(start, server, server.Destinations[1]); got != 4 {
		t.Errorf("weight %d, want the kernel's", got)
	}
	if got := r.Of(key).Weight(start.Add(time.Second), server, server.Destinations[1]); got != 5 {
		t.Errorf("a step later: weight %d", got)
	}
}

func TestNewVirtualServerStartsWithFullWeights(t *testing.T) {
	w, _ := wanted()
	r := New()
	r.UpdateAll(start, w, &kernel.State{})
	if r.Of(key) != nil || !r.Next().IsZero() {
		t.Errorf("ramp %v, next step at %v", r.Of(key), r.Next())
	}
}

func TestRampEndsWithItsVirtualServer(t *testing.T) {
	w, _ := wanted()
	r := New()
	r.UpdateAll(start, w, holding(0))
	r.UpdateAll(start, want.New(want.Base{}), holding(0))
	if r.Of(key) != nil || len(slices.Collect(r.Servers())) > 0 {
		t.Errorf("ramp %v", r.Of(key))
	}
}
