package agent_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

func (w *world) connections(dest string, active uint32) {
	w.fake.SetConnections(webKey, netip.MustParseAddrPort(dest), active, 0)
}

const draining = "-r 10.244.0.2:8080 -m -w 0"

func TestDrainUntilTheLastConnection(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(web("10.244.0.1", "10.244.0.2"))
		w.start()
		w.connections("10.244.0.2:8080", 2)
		w.put(web("10.244.0.1"))
		if !w.has(draining) {
			w.Errorf("the destination is not draining:\n%s", w.fake.Dump())
		}
		w.sleep(drainTimeout / 2)
		if !w.has(draining) {
			w.Errorf("the destination was deleted before its connections ended:\n%s", w.fake.Dump())
		}
		w.fake.TakeCounts()
		w.takeReports()
		w.connections("10.244.0.2:8080", 0)
		w.sleep(drainInterval + time.Second)
		w.is()
		if c := w.fake.TakeCounts(); c.Writes() != 1 || c.Reads > 0 {
			w.Errorf("counts %+v", c)
		}
		w.sleep(3 * drainInterval)
		if c := w.fake.TakeCounts(); c.Lookups > 0 {
			w.Errorf("connections are still counted: %+v", c)
		}
	})
}

func TestDrainTimeout(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(web("10.244.0.1", "10.244.0.2"))
		w.start()
		w.connections("10.244.0.2:8080", 1)
		w.put(web("10.244.0.1"))
		w.sleep(drainTimeout - 2*drainInterval)
		if !w.has(draining) {
			w.Errorf("the destination was deleted before the timeout:\n%s", w.fake.Dump())
		}
		w.sleep(3 * drainInterval)
		w.is()
		for _, r := range w.takeReports() {
			if r.Drift > 0 {
				w.Errorf("drift: %v", done(r))
			}
		}
	})
}

func TestDrainWithFaults(t *testing.T) {
	bubble(t, func(w *world) {
		w.put(web("10.244.0.1", "10.244.0.2"))
		w.start()
		w.sleep(auditInterval)
		if w.has("-r 10.244.0.2:8080 -m -w 1") {
			w.connections("10.244.0.2:8080", 1)
		}
		w.put(web("10.244.0.1"))
		w.sleep(drainTimeout + 3*auditInterval)
		w.converged()
	})
}

func TestUDPDestinationsAreRemovedImmediately(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(proto(web("10.244.0.1", "10.244.0.2"), inet.UDP))
		w.start()
		key := kernel.ServerKey{Addr: webKey.Addr, Protocol: inet.UDP}
		w.fake.SetConnections(key, netip.MustParseAddrPort("10.244.0.2:8080"), 0, 9)
		w.put(proto(web("10.244.0.1"), inet.UDP))
		w.is()
	})
}

func TestEndpointReturnsWhileDraining(t *testing.T) {
	calmBubble(t, func(w *world) {
		both := web("10.244.0.1", "10.244.0.2")
		w.put(both)
		w.start()
		w.connections("10.244.0.2:8080", 1)
		w.put(web("10.244.0.1"))
		w.sleep(drainTimeout - 2*drainInterval)
		w.takeReports()
		w.put(both)
		if ops := done(w.lastReport()); len(ops) != 2 || !strings.HasPrefix(ops[0]+ops[1], "ipset add KIPVS-4-HAIRPIN") ||
			ops[1] != "ipvsadm -e -t 10.96.0.1:80 -r 10.244.0.2:8080 -m -w 1" {
			w.Errorf("operations %q", ops)
		}
		w.put(web("10.244.0.1"))
		w.sleep(4 * drainInterval)
		if !w.has(draining) {
			w.Error("the timeout did not restart")
		}
	})
}

// TestStoppedEndpoints: an endpoint whose weight is 0 by annotation starts and stops draining without an operation.
func TestStoppedEndpoints(t *testing.T) {
	calmBubble(t, func(w *world) {
		stopped := func(endpoints ...string) *model.Service {
			svc := web(endpoints...)
			svc.Balancing.Weights.DefaultSet = true
			return svc
		}
		both, one := stopped("10.244.0.1", "10.244.0.2"), stopped("10.244.0.1")
		w.put(both)
		w.start()
		w.put(one)
		w.sleep(drainInterval + time.Second)
		w.is()

		w.put(both)
		w.connections("10.244.0.2:8080", 1)
		w.put(one)
		w.sleep(drainTimeout - 2*drainInterval)
		w.put(both)
		if n := w.lastReport().Draining; n != 0 {
			w.Errorf("%d wanted endpoints drain", n)
		}
		w.put(one)
		w.sleep(4 * drainInterval)
		if n := w.lastReport().Draining; !w.has(draining) || n != 1 {
			w.Errorf("%d endpoints drain; the timeout did not restart", n)
		}
	})
}

// The draining endpoints of a deleted Service are removed with the Service, because its address becomes unreachable.
func TestServiceDeletedWhileDraining(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(web("10.244.0.1", "10.244.0.2"))
		w.start()
		w.connections("10.244.0.2:8080", 1)
		w.put(web("10.244.0.1"))
		w.remove("web")
		w.is()
		w.fake.TakeCounts()
		w.sleep(3 * drainInterval)
		if c := w.fake.TakeCounts(); c.Lookups > 0 {
			w.Errorf("connections are still counted: %+v", c)
		}
	})
}

func TestDrainingDestinationIsDeleted(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(web("10.244.0.1", "10.244.0.2"), compiletest.Service("other", "10.96.0.2", "10.244.0.1"))
		w.start()
		w.connections("10.244.0.2:8080", 1)
		w.put(web("10.244.0.1"))
		w.damage(func(f *kerneltest.Fake) error {
			return f.DelDestination(kernel.ServerDestination{Server: webKey, Destination: to("10.244.0.2:8080", 0)})
		})
		w.sleep(2 * drainInterval)
		w.is()
		w.fake.TakeCounts()
		w.sleep(2 * drainInterval)
		if c := w.fake.TakeCounts(); c.Lookups > 0 {
			w.Errorf("connections are still counted: %+v", c)
		}
	})
}

// The number of draining destinations is limited per Service, even if it has many virtual servers and constantly
// changing endpoints.
func TestDrainingIsBounded(t *testing.T) {
	const most = 1 << 16
	for name, stops := range map[string]bool{"endpoints with connections": false, "endpoints whose weight is 0 by annotation": true} {
		t.Run(name, func(t *testing.T) {
			calmBubble(t, func(w *world) {
				w.unwatched = true
				w.fake.OnOp(nil)
				w.put(web("10.244.0.1", "10.244.0.2"))
				w.start()
				w.connections("10.244.0.2:8080", 1)
				for round := range 8 {
					var endpoints []string
					for i := range 3 {
						endpoints = append(endpoints, compiletest.Pod(3*round+i).String())
					}
					many := manyAddresses(endpoints...)
					many.Balancing.Weights.DefaultSet = stops
					w.put(many)
					if n := destinations(w.fake); n > 3*6001+most+2 {
						t.Fatalf("there are %d destinations after %d changes", n, round)
					}
				}
				if n := destinations(w.fake); n < most {
					t.Errorf("only %d destinations, so the bound was never reached", n)
				}
				if w.put(web("10.244.0.1")); !w.has(draining) {
					t.Error("another Service's endpoint does not drain")
				}
			})
		})
	}
}

func destinations(fake *kerneltest.Fake) (n int) {
	for _, server := range fake.State().Servers {
		n += len(server.Destinations)
	}
	return n
}
