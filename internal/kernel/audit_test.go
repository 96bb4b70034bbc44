package kernel_test

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func keyAt(i int) kernel.ServerKey {
	addr := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
	return kernel.ServerKey{Addr: netip.AddrPortFrom(addr, 80), Protocol: inet.TCP}
}

func many(servers int) *kernel.State {
	s := kernel.NewState()
	s.Members["VIP"] = map[kernel.Element]struct{}{}
	for i := range servers {
		server := kernel.ObservedServer{Server: kernel.Server{Key: keyAt(i), Scheduler: "rr"}}
		for j := range 10 {
			d := kernel.Destination{Addr: netip.AddrPortFrom(keyAt(1<<20+10*i+j).Addr.Addr(), 8080), Weight: 1}
			server.Destinations = append(server.Destinations, kernel.ObservedDestination{Destination: d})
		}
		s.Servers[keyAt(i)] = server
		s.Addresses[keyAt(i).Addr.Addr()] = kernel.OnDevice
		s.Members["VIP"][kernel.Element{Addr: keyAt(i).Addr.Addr()}] = struct{}{}
	}
	return s
}

func TestNoDifferencesCostNothing(t *testing.T) {
	state := many(1000)
	var c kernel.Comparer
	if d := c.Compare(state, kernel.Audit{}, nil); !d.All || len(d.Servers) != 1000 || len(d.Members) != 1 || d.Addresses.Len() != 1000 {
		t.Fatalf("the first audit returns %d virtual servers", len(d.Servers))
	}
	var d *kernel.Differences
	if allocs := testing.AllocsPerRun(5, func() { d = c.Compare(state, kernel.Audit{}, nil) }); allocs > 10 {
		t.Errorf("Compare allocates %v times", allocs)
	}
	if d.All || len(d.Servers) > 0 || len(d.Members) > 0 || d.Addresses.Len() > 0 {
		t.Errorf("the audit found %+v", d)
	}
}

func TestConnectionsOfDrainingDestinationsAreDifferences(t *testing.T) {
	for weight, differs := range map[uint32]bool{0: true, 1: false} {
		observed := func(connections uint32) *kernel.State {
			s := many(1)
			d := &s.Servers[keyAt(0)].Destinations[3]
			d.Weight, d.Stats.Active = weight, connections
			return s
		}
		var c kernel.Comparer
		c.Compare(observed(7), kernel.Audit{}, nil)
		if d := c.Compare(observed(8), kernel.Audit{}, nil); (len(d.Servers) > 0) != differs {
			t.Errorf("weight %d: wrong differences %v", weight, d.Servers)
		}
	}
}

func BenchmarkCompare(b *testing.B) {
	for _, servers := range []int{1000, 10_000} {
		b.Run(fmt.Sprint(servers), func(b *testing.B) {
			before := many(servers)
			after := *before
			after.Servers = maps.Clone(before.Servers)
			var c kernel.Comparer
			c.Compare(before, kernel.Audit{}, nil)
			b.ReportAllocs()
			for b.Loop() {
				if d := c.Compare(&after, kernel.Audit{}, nil); len(d.Servers) > 0 {
					b.Fatal(len(d.Servers))
				}
			}
		})
	}
}
