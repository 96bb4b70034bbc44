package schedulers

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

type probes struct {
	stop     chan struct{}
	wg       sync.WaitGroup
	mu       sync.Mutex
	outcomes map[cluster.Outcome]int
}

// probe starts four clients in a pod.
func (w *world) probe(s service, f cluster.Family) *probes {
	p := &probes{stop: make(chan struct{}), outcomes: map[cluster.Outcome]int{}}
	for range 4 {
		p.wg.Go(func() {
			for {
				select {
				case <-p.stop:
					return
				case <-time.After(5 * time.Millisecond): // shorter than the agent's pause between syncs
				}
				r := w.inside.Probe(cluster.TCP, s.at(f), slowly)
				p.mu.Lock()
				p.outcomes[r.Outcome]++
				p.mu.Unlock()
			}
		})
	}
	return p
}

func (p *probes) hold(t *testing.T, n int) {
	t.Helper()
	enough := p.made() + n
	cluster.Eventually(t, patience, "clients make more connections", func() error {
		if now := p.made(); now < enough {
			return fmt.Errorf("they have made %d connections, want %d", now, enough)
		}
		return nil
	})
}

func (p *probes) made() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, times := range p.outcomes {
		n += times
	}
	return n
}

func (p *probes) end(t *testing.T) (answered, refused int) {
	t.Helper()
	close(p.stop)
	p.wg.Wait()
	answered, refused = p.outcomes[cluster.Answered], p.outcomes[cluster.Refused]
	if len(p.outcomes) > 2 || answered == 0 {
		t.Errorf("outcomes %v", p.outcomes)
	}
	return answered, refused
}

const changes = 6

// An endpoint with its own weight must not change the scheduler, because the kernel refuses new connections during
// a scheduler change.
func TestWeightsThatComeAndGo(t *testing.T) {
	w := onWorld(t)
	cluster.NeedPauses(t)
	s := w.service(t, "canaries", notes{"weight-by-pod": "w10=5"}, w.backends[8:9])
	w.await(t, s, "wrr", map[string]int{"w9": 1})
	p := w.probe(s, cluster.V4)
	for range changes {
		s.backends = w.backends[8:10]
		w.put(t, s)
		w.await(t, s, "wrr", map[string]int{"w9": 1, "w10": 5})
		s.backends = w.backends[8:9]
		w.put(t, s)
		w.await(t, s, "wrr", map[string]int{"w9": 1})
	}
	if answered, refused := p.end(t); refused > 0 {
		t.Errorf("%d connections were refused and %d were answered", refused, answered)
	}
}

// TestCostOfChangingScheduler accepts any number of refused connections, because the number depends on the machine.
func TestCostOfChangingScheduler(t *testing.T) {
	w := onWorld(t)
	s := w.service(t, "changed", notes{"scheduler": "rr"}, w.backends[8:10])
	weights := map[string]int{"w9": 1, "w10": 1}
	w.await(t, s, "rr", weights)
	for _, c := range []struct{ what, first, second string }{
		{"rr and lc", "lc", "rr"},
		{"rr and rr", "rr", "rr"},
	} {
		p := w.probe(s, cluster.V4)
		for range changes {
			for _, scheduler := range []string{c.first, c.second} {
				s.notes = notes{"scheduler": scheduler}
				w.put(t, s)
				w.await(t, s, scheduler, weights)
				p.hold(t, 8) // on a virtual clock, the change takes no time
			}
		}
		answered, refused := p.end(t)
		record(t, "%d changes between %s: %d connections answered, %d refused", 2*changes, c.what, answered, refused)
		if c.first == c.second && refused > 0 {
			t.Errorf("%d connections were refused although nothing changed", refused)
		}
	}
}
