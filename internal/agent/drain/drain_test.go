package drain

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

const interval = 5 * time.Second

var (
	start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	key   = kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: inet.TCP}
	pod   = netip.MustParseAddrPort("10.244.0.1:80")
)

func wanting(destinations ...kernel.Destination) *diff.Target {
	w := want.New(want.Base{})
	w.Replace(nil, want.Fragment{{Server: kernel.Server{Key: key}, Destinations: destinations}}, want.NewTouched())
	return diff.NewTarget(w)
}

func holding(weight, connections uint32) *kernel.State {
	d := kernel.ObservedDestination{Destination: kernel.Destination{Addr: pod, Weight: weight}}
	d.Stats.Active = connections
	server := kernel.ObservedServer{Server: kernel.Server{Key: key}, Destinations: []kernel.ObservedDestination{d}}
	return &kernel.State{Servers: map[kernel.ServerKey]kernel.ObservedServer{key: server}}
}

func TestClockRunsWhileADestinationDrains(t *testing.T) {
	c := NewClocks()
	c.Update(start, interval, Pass{Target: wanting(), Have: holding(0, 3), Full: true})
	c.Update(start.Add(time.Minute), interval, Pass{Target: wanting(), Have: holding(0, 3), Full: true})
	if c.Count() != 1 || c.Of(key)[pod] != start {
		t.Errorf("%d destinations are draining; this one has been draining since %v", c.Count(), c.Of(key)[pod])
	}
	if now := start.Add(time.Minute); !c.Expired(now, time.Minute, key, pod) || c.Expired(now, time.Hour, key, pod) || c.Expired(now, 0, key, pod) {
		t.Error("a clock must expire after its timeout, and must not expire without a timeout")
	}
	c.Update(start.Add(time.Hour), interval, Pass{Target: wanting(kernel.Destination{Addr: pod, Weight: 1}), Have: holding(1, 3), Full: true})
	if c.Count() != 0 || c.Of(key) != nil || !c.Next().IsZero() {
		t.Errorf("after the endpoint returned, its clock is %v and the next count is at %v", c.Of(key), c.Next())
	}
}

func TestConnectionsAreCountedOncePerInterval(t *testing.T) {
	c := NewClocks()
	c.Update(start, interval, Pass{Target: wanting(), Have: holding(0, 3), Full: true})
	if c.Due(start.Add(interval-1)) || !c.Due(start.Add(interval)) || c.Next() != start.Add(interval) {
		t.Errorf("the next count is at %v", c.Next())
	}
	c.Update(start.Add(time.Second), interval, Pass{Target: wanting(), Have: holding(0, 3)})
	if c.Next() != start.Add(interval) {
		t.Errorf("another sync moved the next count to %v", c.Next())
	}
}

func TestDrainedIsReportedOnce(t *testing.T) {
	var s Stopped
	w := wanting(kernel.Destination{Addr: pod})
	for i, step := range []struct {
		connections   uint32
		reported, now int
	}{{2, 0, 0}, {0, 1, 1}, {0, 0, 1}, {1, 0, 0}, {0, 1, 1}} {
		if got := len(s.Update(w, holding(0, step.connections))); got != step.reported || s.Drained() != step.now || s.Count() != 1 {
			t.Errorf("step %d: %d destinations were reported, and %d of %d are drained", i, got, s.Drained(), s.Count())
		}
	}
}

func TestDrainingServersTakeTurns(t *testing.T) {
	for _, servers := range []int{1, 100, 101, 1000} {
		t.Run(fmt.Sprint(servers), func(t *testing.T) {
			w, have := want.New(want.Base{}), kernel.NewState()
			for i := range servers {
				other := kernel.ServerKey{Addr: netip.AddrPortFrom(key.Addr.Addr(), uint16(i+1)), Protocol: inet.TCP}
				w.Replace(nil, want.Fragment{{Server: kernel.Server{Key: other}}}, want.NewTouched())
				have.Servers[other] = kernel.ObservedServer{Destinations: holding(0, 3).Servers[key].Destinations}
			}
			c, now := NewClocks(), start
			c.Update(now, interval, Pass{Target: diff.NewTarget(w), Have: have, Full: true})
			if c.Count() != servers {
				t.Errorf("%d destinations are draining", c.Count())
			}
			seen := map[kernel.ServerKey]int{}
			turns := (servers + maxCounted - 1) / maxCounted
			for range turns {
				if wait := c.Next().Sub(now); wait > interval || wait < time.Second {
					t.Errorf("the next turn is in %v", wait)
				}
				now = c.Next()
				turn := c.Turn()
				if len(turn) > maxCounted {
					t.Errorf("one turn counted %d virtual servers", len(turn))
				}
				for _, key := range turn {
					seen[key]++
				}
				c.Update(now, interval, Pass{Target: diff.NewTarget(w), Have: have})
			}
			if len(seen) != servers {
				t.Errorf("%d of %d virtual servers were counted in %d turns", len(seen), servers, turns)
			}
		})
	}
}

// TestRoomVisitsOneService: most changes release destinations, so the room of a Service must not cost more if other Services drain.
func TestRoomVisitsOneService(t *testing.T) {
	w, have := want.New(want.Base{}), kernel.NewState()
	for i := range 100 {
		other := kernel.ServerKey{Addr: netip.AddrPortFrom(key.Addr.Addr(), uint16(i+1)), Protocol: inet.TCP}
		server := want.Server{Server: kernel.Server{Key: other}}
		server.Owner.Service = want.ServiceID{Name: fmt.Sprint("svc-", i/2)} // has two virtual servers
		w.Replace(nil, want.Fragment{server}, want.NewTouched())
		have.Servers[other] = kernel.ObservedServer{Destinations: holding(0, 3).Servers[key].Destinations}
	}
	target, c := diff.NewTarget(w), NewClocks()
	c.Update(start, interval, Pass{Target: target, Have: have, Full: true})
	for _, server := range target.Servers {
		room := 0
		if n := testing.AllocsPerRun(1, func() { room = c.Room(server) }); n > 0 {
			t.Fatalf("asking for the room of %v takes %v allocations", server.Owner, n)
		}
		if room != maxDraining-2 {
			t.Errorf("%d more destinations of %v may drain", room, server.Owner)
		}
	}
	clear(have.Servers)
	c.Update(start.Add(time.Second), interval, Pass{Target: target, Have: have, Full: true})
	if c.Count() != 0 || len(c.services) != 0 || len(c.owners) != 0 {
		t.Errorf("after all destinations are gone, the clocks of %v and %v run (count %d)", c.services, c.owners, c.Count())
	}
}
