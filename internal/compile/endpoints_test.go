package compile_test

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// repeated draws a Service with policy Local whose few endpoints are in several slices, on different nodes and in different states.
func repeated(t *rapid.T) *model.Service {
	svc := compiletest.Service("web", "10.96.0.1")
	svc.InternalLocal = true
	empty := *svc.Slices[0]
	svc.Slices = nil
	for i := range rapid.IntRange(1, 4).Draw(t, "slices") {
		slice := empty
		slice.Name = fmt.Sprintf("web-%d", i)
		for range rapid.IntRange(0, 4).Draw(t, "endpoints") {
			e := model.Endpoint{
				Addr:  netip.AddrFrom4([4]byte{10, 244, 0, rapid.SampledFrom([]byte{1, 2, 3}).Draw(t, "address")}),
				Node:  rapid.SampledFrom([]string{compiletest.Node, "node-b", ""}).Draw(t, "node"),
				Ready: rapid.Bool().Draw(t, "ready"), Serving: rapid.Bool().Draw(t, "serving"), Terminating: rapid.Bool().Draw(t, "terminating"),
			}
			slice.Endpoints = append(slice.Endpoints, e)
		}
		svc.Slices = append(svc.Slices, &slice)
	}
	return svc
}

func state(e model.Endpoint) int {
	switch {
	case e.Ready && !e.Terminating:
		return 0
	case !e.Terminating:
		return 1
	case e.Ready:
		return 2
	case e.Serving:
		return 3
	}
	return 4
}

// TestOneEndpointOnTwoNodes: if slices disagree about an endpoint's node, this node keeps the endpoint under the policy Local, unless the slice that
// names another node shows it in a better state.
func TestOneEndpointOnTwoNodes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		svc := repeated(t)
		best := map[netip.Addr]int{}
		local := map[netip.Addr]bool{}
		for _, slice := range svc.Slices {
			for _, e := range slice.Endpoints {
				known, exists := best[e.Addr]
				if s := state(e); !exists || s < known {
					best[e.Addr], local[e.Addr] = s, e.Node == compiletest.Node
				} else if s == known && e.Node == compiletest.Node {
					local[e.Addr] = true
				}
			}
		}
		ready, last := map[netip.Addr]bool{}, map[netip.Addr]bool{}
		for addr, s := range best {
			switch {
			case !local[addr]:
			case s == 0 || s == 2:
				ready[addr] = true
			case s == 3:
				last[addr] = true
			}
		}
		if len(ready) == 0 {
			ready = last
		}
		if got := destinations(svc); !maps.Equal(got, ready) {
			t.Fatalf("got destinations %v, want %v", got, ready)
		}
	})
}

func destinations(svc *model.Service) map[netip.Addr]bool {
	cluster := compile.NewCluster(compiletest.Config())
	cluster.Update(map[model.ServiceID]*model.Service{svc.ID: svc}, want.NewTouched())
	all := map[netip.Addr]bool{}
	for _, server := range cluster.Want().Servers {
		for _, d := range server.Destinations {
			all[d.Addr.Addr()] = true
		}
	}
	return all
}
