package schedulers

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

var slowly = cluster.Within(20 * time.Second)

// counts contains the number of connections that each backend answered.
type counts map[string]int

func (c counts) total() int {
	n := 0
	for _, k := range c {
		n += k
	}
	return n
}

// share returns a backend's percentage.
func (c counts) share(name string) float64 { return 100 * float64(c[name]) / float64(c.total()) }

// one returns the backend that answered all connections.
func (c counts) one(t *testing.T, what string) string {
	t.Helper()
	if len(c) != 1 {
		t.Errorf("%s: want one backend to answer all connections, got %v", what, c)
	}
	return slices.Sorted(maps.Keys(c))[0]
}

// tolerance is in percentage points.
func (c counts) want(t *testing.T, what string, weights map[string]int, tolerance float64) {
	t.Helper()
	sum := 0
	for _, weight := range weights {
		sum += weight
	}
	for name, weight := range weights {
		if want := 100 * float64(weight) / float64(sum); math.Abs(c.share(name)-want) > tolerance {
			t.Errorf("%s: %s got %.1f %% of %d connections, want %.1f %% (within %.1f): %v",
				what, name, c.share(name), c.total(), want, tolerance, c)
		}
	}
	for name := range c {
		if weights[name] == 0 {
			t.Errorf("%s: %s must get no connection: %v", what, name, c)
		}
	}
}

// ask makes one connection from each source, and returns the backends that answered.
func (w *world) ask(t *testing.T, proto cluster.Protocol, f cluster.Family, at string, sources []int) []string {
	t.Helper()
	ask := w.askByTCP
	if proto == cluster.UDP {
		ask = w.askByUDP
	}
	answered, err := ask(f, at, sources)
	if err != nil {
		t.Fatalf("%s %s: %v", proto, at, err)
	}
	return answered
}

func (w *world) askByTCP(f cluster.Family, at string, sources []int) ([]string, error) {
	answered, problems := make([]string, len(sources)), make([]error, len(sources))
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := worker; i < len(sources); i += 8 {
				r := w.client.Probe(cluster.TCP, at, slowly, cluster.FromAddr(source(f, sources[i])))
				answered[i] = r.Reply.Server
				if r.Outcome != cluster.Answered {
					problems[i] = fmt.Errorf("from %s: %s", source(f, sources[i]), r)
				}
			}
		})
	}
	wg.Wait()
	return answered, errors.Join(problems...)
}

// fromMany makes n connections, each from an unused client address. From a used address, the client might choose
// the same port again, and the kernel would then use the old connection's endpoint.
func (w *world) fromMany(t *testing.T, n int, proto cluster.Protocol, f cluster.Family, at string) counts {
	t.Helper()
	sources := make([]int, n)
	for i := range sources {
		sources[i] = firstUnused + w.used%(lastSource-firstUnused)
		w.used++
	}
	return count(w.ask(t, proto, f, at, sources))
}

// Addresses below firstUnused are for tests that reuse addresses.
const (
	firstUnused = 1 << 12
	lastSource  = 1<<16 - 1
)

func count(names []string) counts {
	c := counts{}
	for _, name := range names {
		c[name]++
	}
	return c
}

func upTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i + 1
	}
	return all
}

// held lists open connections, oldest first.
type held []*cluster.Conn

func (w *world) hold(t *testing.T, n int, f cluster.Family, at string) held {
	t.Helper()
	h := make(held, n)
	for i := range h {
		h[i] = w.client.Open(t, cluster.TCP, at, slowly, cluster.FromAddr(source(f, i+1)))
	}
	return h
}

func (h held) counts() counts {
	c := counts{}
	for _, conn := range h {
		c[conn.Server]++
	}
	return c
}

// closeAll closes the connections to one backend, or all if of is empty.
func (h held) closeAll(of string) {
	for _, conn := range h {
		if of == "" || conn.Server == of {
			conn.Close()
		}
	}
}
