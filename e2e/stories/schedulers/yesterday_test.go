package schedulers

import (
	"sync"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// memory measures how long a virtual server with affinity remembers clients after their connections are closed.
// This takes two minutes, so the measurement starts with the world. TestAffinityOutlivesConnections is in the last
// file, so that it runs last.
type memory struct {
	stopped   chan struct{}
	once      sync.Once
	watching  sync.WaitGroup
	mu        sync.Mutex
	forgotten map[cluster.Family]time.Duration
}

func (w *world) visit(t *testing.T) *memory {
	t.Helper()
	m := &memory{stopped: make(chan struct{}), forgotten: map[cluster.Family]time.Duration{}}
	s := service{name: "long", notes: notes{"affinity-timeout": "5"}, backends: w.backends[8:12],
		ips: map[cluster.Family]string{cluster.V4: "10.96.3.1", cluster.V6: "fd00:10:96::301"}}
	w.put(t, s)
	w.await(t, s, "rr", alike(1, s.backends))
	for _, f := range w.FamilyList() {
		w.client.Get(t, cluster.TCP, s.at(f), slowly, cluster.FromAddr(source(f, 99)))
		began := time.Now()
		m.watching.Go(func() { m.watch(f, began, func() error { return w.forgotten(f, s, 99) }) })
	}
	return m
}

func (m *memory) watch(f cluster.Family, began time.Time, remembered func() error) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for remembered() != nil {
		select {
		case <-m.stopped:
			return
		case <-tick.C:
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forgotten[f] = time.Since(began)
}

func (m *memory) stop() {
	m.once.Do(func() { close(m.stopped) })
	m.watching.Wait()
}

// For TCP, the last connection expires two minutes after it was closed. The kernel checks for open connections when
// the timeout expires, and then once a minute.
func TestAffinityOutlivesConnections(t *testing.T) {
	w := onWorld(t)
	w.bothFamilies(t, func(t *testing.T, f cluster.Family) {
		w.memory.watching.Wait()
		took := w.memory.forgotten[f].Seconds()
		record(t, "affinity-timeout 5 s, one TCP connection, closed immediately: the client is forgotten after %.0f s (%s)", took, f)
		if took < 120 || took > 150 {
			t.Errorf("%s: the client was forgotten after %.0f s, want 125", f, took)
		}
	})
}
