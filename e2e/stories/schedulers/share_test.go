package schedulers

import (
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

func TestShare(t *testing.T) {
	w := onWorld(t)
	four := w.backends[8:12] // two on each node
	names := func(weights ...int) map[string]int {
		m := map[string]int{}
		for i, weight := range weights {
			m[four[i].name] = weight
		}
		return m
	}
	const n = 1000

	t.Run("rr", func(t *testing.T) {
		s := w.up(t, "rr", "rr", notes{}, four...)
		w.bothFamilies(t, func(t *testing.T, f cluster.Family) {
			for _, proto := range []cluster.Protocol{cluster.TCP, cluster.UDP} {
				c := w.fromMany(t, map[cluster.Protocol]int{cluster.TCP: 200, cluster.UDP: n}[proto], proto, f, s.at(f))
				c.want(t, "rr", alike(1, four), 0.5)
				if f == cluster.V4 && proto == cluster.TCP {
					plot(t, "rr", c, four)
				}
			}
		})
	})
	t.Run("weights", func(t *testing.T) {
		weights := names(10, 5, 4, 1)
		for _, scheduler := range []string{"wrr", "rr", "wlc", "lc", "mh"} {
			s := w.service(t, "w-"+scheduler, notes{"scheduler": scheduler, "weight-by-pod": "w9=10, w10=5, w11=4, w12=1"}, four)
			takes, tolerance := scheduler, 0.5
			switch scheduler {
			case "rr", "lc":
				takes = "w" + scheduler // the weighted variant
			case "mh":
				tolerance = 6 // the choice is random, and n is small
			}
			w.await(t, s, takes, weights)
			w.bothFamilies(t, func(t *testing.T, f cluster.Family) {
				if scheduler == "wlc" || scheduler == "lc" {
					h := w.hold(t, 100, f, s.at(f))
					h.counts().want(t, scheduler, weights, 2)
					h.closeAll("")
					return
				}
				c := w.fromMany(t, n, cluster.UDP, f, s.at(f))
				c.want(t, scheduler, weights, tolerance)
				if f == cluster.V4 && scheduler != "rr" {
					plot(t, scheduler+", weights 10, 5, 4, 1", c, four)
				}
			})
		}
	})
	t.Run("least connections", func(t *testing.T) { w.leastConnections(t, four[:2]) })
	t.Run("idle first", func(t *testing.T) { w.idleFirst(t, four[:2]) })
	t.Run("spill over", func(t *testing.T) { w.spillOver(t, four[:3]) })
	t.Run("first endpoint", func(t *testing.T) { w.firstEndpoint(t) })
}

// After the connections to one of two endpoints are closed, lc prefers this idle endpoint, and rr does not.
func (w *world) leastConnections(t *testing.T, two []*backend) {
	const each = 12
	refill := func(t *testing.T, f cluster.Family, s service) counts {
		first := w.hold(t, 2*each, f, s.at(f))
		first.counts().want(t, s.name, alike(1, two), 1)
		first.closeAll(two[0].name)
		second := w.hold(t, each, f, s.at(f))
		defer second.closeAll("")
		defer first.closeAll("")
		return second.counts()
	}
	for _, scheduler := range []string{"rr", "lc", "wlc"} {
		s := w.up(t, "uneven-"+scheduler, scheduler, notes{}, two...)
		w.bothFamilies(t, func(t *testing.T, f cluster.Family) {
			c := refill(t, f, s)
			if scheduler == "rr" {
				c.want(t, scheduler, alike(1, two), 1)
			} else if c[two[0].name] < each-1 { // closed connections also count a little
				t.Errorf("%s: after all connections of %s were closed, the distribution of %d new ones is %v", scheduler, two[0].name, each, c)
			}
			if f == cluster.V4 {
				plot(t, scheduler+", where one endpoint's connections have ended and the other's are open: the next ones", c, two)
			}
		})
	}
}

// nq gives the second connection to the idle endpoint with the small weight. sed gives it to the busy endpoint,
// where it expects the shorter delay.
func (w *world) idleFirst(t *testing.T, two []*backend) {
	strong, weak := two[0].name, two[1].name
	for scheduler, want := range map[string]counts{"sed": {strong: 4, weak: 0}, "nq": {strong: 3, weak: 1}} {
		s := w.service(t, "idle-"+scheduler, notes{"scheduler": scheduler, "weight-by-pod": strong + "=8," + weak + "=1"}, two)
		w.await(t, s, scheduler, map[string]int{strong: 8, weak: 1})
		w.bothFamilies(t, func(t *testing.T, f cluster.Family) {
			h := w.hold(t, 4, f, s.at(f))
			defer h.closeAll("")
			c := h.counts()
			if c[strong] != want[strong] || c[weak] != want[weak] {
				t.Errorf("%s: four connections to endpoints of weight 8 and 1 went to %v, want %v", scheduler, c, want)
			}
			if f == cluster.V4 {
				plot(t, scheduler+", weights 8 and 1: the first four open connections", c, two)
			}
		})
	}
}

// fo sends all connections to the endpoint with the largest weight until that endpoint is full or drained. ovf
// moves on when an endpoint has more open connections than its weight.
func (w *world) spillOver(t *testing.T, three []*backend) {
	a, b, c := three[0].name, three[1].name, three[2].name
	weights := map[string]int{a: 6, b: 4, c: 2}
	note := a + "=6," + b + "=4," + c + "=2"

	ovf := w.service(t, "ovf", notes{"scheduler": "ovf", "weight-by-pod": note}, three)
	w.await(t, ovf, "ovf", weights)
	fo := w.service(t, "fo", notes{"scheduler": "fo", "weight-by-pod": note}, three)
	w.await(t, fo, "fo", weights)
	w.bothFamilies(t, func(t *testing.T, f cluster.Family) {
		h := w.hold(t, 12, f, ovf.at(f))
		defer h.closeAll("")
		if f == cluster.V4 {
			plot(t, "ovf, weights 6, 4, 2: the first twelve open connections", h.counts(), three)
		}
		if got := h.counts(); got[a] != 7 || got[b] != 5 {
			t.Errorf("ovf: the connections went to %v, want one more than the weight on each of the first two endpoints", got)
		}
		if one := w.fromMany(t, 50, cluster.TCP, f, fo.at(f)).one(t, "fo"); one != a {
			t.Errorf("fo: %s received all connections, want the endpoint with the largest weight, %s", one, a)
		}
	})
	full := w.service(t, "fo-full", notes{"scheduler": "fo", "weight-by-pod": note, "max-connections": "3", "resume-connections": "2"}, three)
	w.await(t, full, "fo", map[string]int{a: 6, b: 4, c: 2})
	w.bothFamilies(t, func(t *testing.T, f cluster.Family) {
		h := w.hold(t, 5, f, full.at(f))
		defer h.closeAll("")
		if got := h.counts(); got[a] != 3 || got[b] != 2 {
			t.Errorf("fo: with a limit of 3 connections, five went to %v, want three to %s and two to %s", got, a, b)
		}
	})
	weights[a] = 0
	fo.notes = fo.notes.with("weight-by-pod", a+"=0,"+b+"=4,"+c+"=2")
	w.put(t, fo)
	w.await(t, fo, "fo", weights)
	w.bothFamilies(t, func(t *testing.T, f cluster.Family) {
		if one := w.fromMany(t, 50, cluster.TCP, f, fo.at(f)).one(t, "fo"); one != b {
			t.Errorf("fo: with %s drained, %s received all connections, want %s", a, one, b)
		}
	})
}

// The nodes must not all send their first client to the same endpoint.
func (w *world) firstEndpoint(t *testing.T) {
	w.bothFamilies(t, func(t *testing.T, f cluster.Family) {
		for _, scheduler := range []string{"rr", "lc"} {
			s := w.up(t, "first-"+scheduler, scheduler, notes{}, w.backends...)
			at1 := w.fromMany(t, 1, cluster.TCP, f, s.at(f)).one(t, "node-1")
			var at2 string
			w.through(t, w.node2, func() { at2 = w.fromMany(t, 1, cluster.TCP, f, s.at(f)).one(t, "node-2") })
			if at1 == at2 {
				t.Errorf("%s: both nodes send the first connection to %s", scheduler, at1)
			}
			record(t, "%s with 20 endpoints, %s: node-1 begins at %s, node-2 at %s", scheduler, f, at1, at2)
		}
	})
}
