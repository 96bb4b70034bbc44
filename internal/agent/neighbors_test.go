package agent_test

import (
	"net/netip"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// TestLargeServicesCostOthersNothing changes a Service while large Services of many shapes exist. Some of them also
// claim the Service's address, or have an endpoint there. Each change must cause the same operations as it would
// without them, no reads, and less than twice the allocations.
func TestLargeServicesCostOthersNothing(t *testing.T) {
	alone := besideLarge(t, 0)
	shapes := [][3]int{{1049, 1000, 0}, {1, 70_000, 0}, {30_000, 1, 0}, {100, 250, 1000}, {1, 1, 30_000}, {1, 1000, 500}} // ports, endpoints, external IPs
	for seed := range 3 {
		shapes = append(shapes, rapid.Custom(func(t *rapid.T) [3]int {
			number := func(most int) int {
				return 1 + rapid.IntRange(0, most>>rapid.IntRange(0, 10).Draw(t, "halved")).Draw(t, "number")
			}
			ports := number(10_000)
			return [3]int{ports, min(number(50_000), 1_000_000/ports), number(4096)}
		}).Example(seed))
	}
	for _, shape := range shapes {
		svc := compiletest.Large("large", shape[0], shape[1])
		for i := range shape[2] {
			svc.ExternalIPs = append(svc.ExternalIPs, netip.AddrFrom4([4]byte{203, 1, byte(i >> 8), byte(i)}))
		}
		for change, beside := range besideLarge(t, shape[1], svc) {
			limit := 2 * alone[change]
			if change == inItsPlace {
				limit += uint64(10 * shape[1]) // the old endpoints are removed in this case
			}
			if beside > limit {
				t.Errorf("next to a Service with %v ports, endpoints and external IPs, %s takes %d allocations instead of %d", shape, change, beside, alone[change])
			}
		}
	}
}

const inItsPlace = "a new Service at another's external IP"

func besideLarge(t *testing.T, inTheWay int, large ...*model.Service) map[string]uint64 {
	allocations := map[string]uint64{}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0)
		w.calm()
		w.fake.OnOp(nil)
		w.unwatched = true
		other := compiletest.Service("other", "10.96.0.1", "10.244.0.1")
		w.services = services{other.ID: other}
		for _, svc := range large {
			w.services[svc.ID] = svc
		}
		w.start()
		defer w.stop()
		for _, r := range w.takeReports() {
			if r.Err != nil {
				t.Error(r.Err)
			}
		}
		change := func(name string, writes int, do func()) {
			w.takeReports()
			w.fake.TakeCounts()
			var begin, end uint64
			w.observed = func() {
				if end == 0 {
					end, _, _ = usage()
				}
			}
			begin, _, _ = usage()
			do()
			w.observed = nil
			first := w.takeReports()[0]
			if c := w.fake.TakeCounts(); first.Err != nil || len(first.Results) > writes || c.Reads > 0 {
				t.Errorf("%s next to %d large Services: got %d operations, calls %+v, error %v", name, len(large), len(first.Results), c, first.Err)
			}
			allocations[name] = end - begin
		}
		put := func(name string, writes int, svc *model.Service) { change(name, writes, func() { w.put(svc) }) }
		put("another endpoint", 1, compiletest.WithEndpoint(other, compiletest.Ready(netip.MustParseAddr("10.244.7.7"))))
		put("a new Service", 6, compiletest.Service("new", "10.96.0.2", "10.244.0.1"))
		put("a new Service at another's endpoint", 6, compiletest.Service("new-1", "11.0.0.3", "10.244.0.1"))
		put(inItsPlace, 6+inTheWay, compiletest.Service("new-2", "203.1.0.3", "10.244.0.1"))
		for _, name := range []string{"new", "new-1", "new-2"} {
			change("the end of "+name, 8, func() { w.remove(name) })
		}
	})
	return allocations
}
