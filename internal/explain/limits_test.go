package explain_test

import (
	"net/netip"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// TestConnectionLimits: an endpoint at its limit gets no connections. Below the limit, only few connections prove that it gets new ones.
func TestConnectionLimits(t *testing.T) {
	key := kernel.ServerKey{Addr: netip.MustParseAddrPort(clusterIPHTTP), Protocol: inet.TCP}
	for _, c := range []struct {
		limit kernel.Destination // of all endpoints but the last
		open  uint32
		last  uint32 // connections of the last one
		want  explain.Verdict
	}{
		{kernel.Destination{Upper: 20}, 20, 20, explain.Stops}, {kernel.Destination{Upper: 20}, 25, 25, explain.Stops},
		{kernel.Destination{Upper: 20}, 15, 15, explain.Unclear}, {kernel.Destination{Upper: 20}, 14, 14, explain.Passes},
		{kernel.Destination{Upper: 20, Lower: 10}, 10, 10, explain.Unclear}, {kernel.Destination{Upper: 20, Lower: 10}, 9, 9, explain.Passes},
		{kernel.Destination{Upper: 1}, 0, 0, explain.Passes}, {kernel.Destination{Upper: 1}, 1, 0, explain.Passes},
		{kernel.Destination{Upper: 20}, 25, 15, explain.Unclear}, {kernel.Destination{Upper: 20}, 15, 0, explain.Passes},
		{kernel.Destination{Upper: 20, Lower: 30}, 20, 20, explain.Stops},
	} {
		w := newWorld(t, web())
		destinations := w.kernel.Servers[key].Destinations
		for i := range destinations {
			d := &destinations[i]
			d.Upper, d.Lower, d.Stats.Active = c.limit.Upper, c.limit.Lower, c.open
			if i == len(destinations)-1 {
				d.Stats.Active = c.last
			}
		}
		if got := w.ask(clusterIPHTTP, outside); got.Verdict != c.want {
			t.Errorf("%+v: got %s, reasons %v", c, got.Verdict, got.Reasons)
		}
	}
}
