package schedulers

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

func TestWeights(t *testing.T) {
	w := onWorld(t)
	four := w.backends[8:12] // w9 and w10 on node-1 in zone-a, w11 and w12 on node-2 in zone-b
	s := w.service(t, "weights", notes{"scheduler": "wrr", "weight": "3", "weight-by-zone": "zone-b=6"}, four)
	w.await(t, s, "wrr", map[string]int{"w9": 3, "w10": 3, "w11": 6, "w12": 6})
	s.notes = s.notes.with("weight-by-node", "node-2=12").with("weight-by-pod", "w12=1")
	w.put(t, s)
	w.await(t, s, "wrr", map[string]int{"w9": 3, "w10": 3, "w11": 12, "w12": 1})

	t.Cleanup(func() {
		w.write(t, "nodes", nodeManifest("node-1", "zone-a", nil)+nodeManifest("node-2", "zone-b", nil))
	})
	w.write(t, "nodes", nodeManifest("node-1", "zone-a", notes{"weight": "2"})+nodeManifest("node-2", "zone-b", nil))
	weights := map[string]int{"w9": 6, "w10": 6, "w11": 12, "w12": 1}
	w.await(t, s, "wrr", weights)
	w.bothFamilies(t, func(t *testing.T, f cluster.Family) {
		w.fromMany(t, 500, cluster.UDP, f, s.at(f)).want(t, "weights of pod, node and zone", weights, 1)
	})

	t.Run("drain a node", func(t *testing.T) { w.drain(t, s) })
	t.Run("canary", func(t *testing.T) {
		canary := w.service(t, "canary", notes{"weight": "19", "weight-by-pod": "w12=3"}, four)
		weights := map[string]int{"w9": 38, "w10": 38, "w11": 19, "w12": 3} // node-1 has twice the weight
		w.await(t, canary, "wrr", weights)
		c := w.fromMany(t, 1000, cluster.UDP, cluster.V4, canary.at(cluster.V4))
		c.want(t, "canary", weights, 0.5)
	})
	t.Run("slow start", func(t *testing.T) { w.slowStart(t) })
}

func (w *world) drain(t *testing.T, s service) {
	w.bothFamilies(t, func(t *testing.T, f cluster.Family) {
		h := w.hold(t, 20, f, s.at(f))
		defer h.closeAll("")
		w.write(t, "nodes", nodeManifest("node-1", "zone-a", notes{"weight": "0"})+nodeManifest("node-2", "zone-b", nil))
		w.await(t, s, "wrr", map[string]int{"w9": 0, "w10": 0, "w11": 12, "w12": 1})
		for name := range w.fromMany(t, 60, cluster.UDP, f, s.at(f)) {
			if name == "w9" || name == "w10" {
				t.Errorf("%s is on the drained node but receives new connections", name)
			}
		}
		for _, conn := range h {
			conn.MustPing(t)
		}
		nothing := s
		nothing.notes = notes{"scheduler": "wrr", "weight": "0"}
		w.put(t, nothing)
		w.await(t, nothing, "wrr", map[string]int{"w9": 0, "w10": 0, "w11": 0, "w12": 0})
		began := time.Now()
		cluster.Eventually(t, patience, "new connections are refused", func() error {
			if r := w.client.Probe(cluster.TCP, s.at(f), slowly); r.Outcome != cluster.Refused {
				return fmt.Errorf("%s", r)
			}
			return nil
		})
		t.Logf("%s: all endpoints drained: refused after %s", f, time.Since(began))
		for _, conn := range h {
			conn.MustPing(t)
		}
		w.put(t, s)
		w.write(t, "nodes", nodeManifest("node-1", "zone-a", notes{"weight": "2"})+nodeManifest("node-2", "zone-b", nil))
		w.await(t, s, "wrr", map[string]int{"w9": 6, "w10": 6, "w11": 12, "w12": 1})
		for _, conn := range h {
			conn.MustPing(t)
		}
		w.client.Await(t, patience, cluster.TCP, s.at(f))
	})
}

// While the weight rises, the agent is killed and restarted.
func (w *world) slowStart(t *testing.T) {
	const rise = 20 * time.Second
	three := w.backends[12:15] // on node-2, because node-1 has twice its weight
	s := w.service(t, "slow", notes{"slow-start": "20s"}, three[:2])
	w.await(t, s, "wrr", map[string]int{three[0].name: 10, three[1].name: 10})
	s.backends = three
	w.put(t, s)
	newcomer := three[2].name
	var began time.Time
	last, curve, killed := 0, []string{}, false
	cluster.Eventually(t, patience, "the new endpoint has its full weight", func() error {
		have, err := s.stateOn(w.node1, cluster.TCP, cluster.V4)
		if err != nil {
			return err
		}
		weight := have.weights[newcomer]
		if weight > 0 && began.IsZero() {
			began = time.Now()
		}
		if weight != last {
			curve = append(curve, fmt.Sprintf("%.1f s: %d", time.Since(began).Seconds(), weight))
			if due := int(10*time.Since(began)/rise) + 2; weight < last || weight > due { // even if the test or the agent is late
				t.Errorf("the weight rose from %d to %d, want at most %d", last, weight, due)
			}
			last = weight
		}
		if weight == 5 && !killed {
			killed = true
			_ = w.agents[w.node1].Signal(syscall.SIGKILL)
			w.startAgent(t, w.node1)
		}
		if weight < 10 {
			return fmt.Errorf("weight %d", weight)
		}
		return nil
	})
	took := time.Since(began)
	record(t, "slow-start 20s, the agent killed and started again at weight 5 of 10: %s", strings.Join(curve, ", "))
	if !killed || took < rise*8/10 {
		t.Errorf("with the agent killed: %t, the endpoint reached its full weight after %s, want about %s", killed, took, rise)
	}
	if strings.Contains(w.agents[w.node1].Log(), "kernel state drifted") {
		t.Errorf("a rising weight was mistaken for drift:\n%s", w.agents[w.node1].Log())
	}
}
