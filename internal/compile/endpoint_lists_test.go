package compile_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

func podAddress(t *rapid.T, from, to byte) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 244, 0, rapid.ByteRange(from, to).Draw(t, "address")})
}

// TestUnchangedSlicesAreReused: the endpoints of unchanged slices are reused, and the result is the same as without reuse. This includes endpoints that
// are in several slices, and endpoints whose address becomes a Service's or a broadcast address.
func TestUnchangedSlicesAreReused(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, now, network := scratch(nil), services{}, kernel.Network{}
		web := compiletest.Service("web", "10.96.0.1")
		web.InternalLocal = rapid.Bool().Draw(t, "local")
		parts := map[int]*model.EndpointSlice{}
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0:
				other := compiletest.Service("other", podAddress(t, 1, 20).String(), "10.244.1.1")
				if now[other.ID] = other; rapid.Bool().Draw(t, "delete") {
					now[other.ID] = nil
				}
				c.Update(services{other.ID: now[other.ID]}, want.NewTouched())
			case 1:
				network = kernel.Network{podAddress(t, 21, 40): kernel.NetworkRole{Kind: kernel.Broadcast}}
				c.SetNetwork(network, want.NewTouched())
			default:
				slice := *web.Slices[0]
				slice.Name = fmt.Sprint("web-", rapid.IntRange(0, 5).Draw(t, "slice"))
				for range rapid.IntRange(0, 4).Draw(t, "endpoints") {
					slice.Endpoints = append(slice.Endpoints, model.Endpoint{
						Addr: podAddress(t, 1, 40), Ready: rapid.Bool().Draw(t, "ready"), Node: rapid.SampledFrom([]string{compiletest.Node, "node-b"}).Draw(t, "node"),
					})
				}
				parts[int(slice.Name[4])] = &slice
				svc := *web
				svc.Slices = nil
				for _, i := range slices.Sorted(maps.Keys(parts)) {
					svc.Slices = append(svc.Slices, parts[i])
				}
				now[svc.ID] = &svc
				c.Update(services{svc.ID: &svc}, want.NewTouched())
			}
			catchUp(c)
			fresh, ids := scratch(nil), []model.ServiceID{web.ID, {Namespace: "default", Name: "other"}}
			fresh.SetNetwork(network, want.NewTouched())
			fresh.Update(compiletest.Between(nil, now), want.NewTouched())
			if d := cmp.Diff(describe(fresh, ids), describe(c, ids)); d != "" {
				t.Fatalf("-from scratch +after a history of changes:\n%s", d)
			}
		}
	})
}
