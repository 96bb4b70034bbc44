package scale

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

const (
	churningServices = 10_000
	churnRate        = 200 // changes a second
	// churnVariable names the environment variable that sets TestChurn's duration.
	churnVariable = "KUBE_IPVS_CHURN"
)

// An audit's dump of the kernel may miss an object if another object changes during the dump. This must neither fail a
// full sync nor count as drift. The agent's use of memory, goroutines and file descriptors does not grow.
func TestChurn(t *testing.T) {
	labtest.NetNS(t)
	long := 15 * time.Second
	if text := os.Getenv(churnVariable); text != "" {
		var err error
		if long, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	cfg, k := open(t)
	services, rng := map[model.ServiceID]*model.Service{}, rand.New(rand.NewPCG(1, 2))
	for n := range churningServices {
		svc := newService(n, 1+rng.IntN(4))
		services[svc.ID] = svc
	}
	s := newSource(services)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	full, syncs, changes, ready := 0, 0, 0, make(chan struct{})
	var halves [2]usage
	observe := func(r agent.Report) {
		syncs++
		if r.Err != nil || r.Drift > 0 {
			t.Errorf("sync %[2]d (full: %[1]t) found %[3]d drifted objects and returned %[4]v", r.Full, syncs, r.Drift, r.Err)
		}
		if r.Full {
			if full++; full == 1 {
				close(ready)
			}
		}
	}
	var changing sync.WaitGroup
	changing.Go(func() {
		defer stop()
		<-ready
		changes, halves = churn(s, rng, long)
	})
	agent.New(agent.Config{
		Compile: cfg, AuditInterval: 10 * time.Second, DrainInterval: 10 * time.Second, DrainTimeout: time.Minute, Observe: observe,
	}, s, k, zap.NewNop()).Run(ctx) // on this goroutine, which is in the network namespace
	changing.Wait()
	t.Attr("figure", fmt.Sprintf("%s: %d changes, %d syncs, %d of them full; least use in the first half: %s; in the second half: %s",
		long, changes, syncs, full, halves[0], halves[1]))
	if now, before := halves[1], halves[0]; now.goroutines > before.goroutines || now.descriptors > before.descriptors || now.heap > before.heap*11/10 {
		t.Errorf("the agent uses more than before: %s, then %s", before, now)
	}
	if full < int(long/time.Minute) || // an audit takes a long time on a slow machine
		changes < churnRate*int(long/time.Second)/4 {
		t.Errorf("only %d full syncs and %d changes", full, changes)
	}
}

// churn also returns the least use of resources in each half of the time.
func churn(s *source, rng *rand.Rand, long time.Duration) (changes int, halves [2]usage) {
	const samples = 20
	tick := time.NewTicker(time.Second / churnRate)
	defer tick.Stop()
	began := time.Now()
	for sampled := 0; time.Since(began) < long; <-tick.C {
		s.change(newService(rng.IntN(churningServices), 1+rng.IntN(4)))
		changes++
		if time.Since(began) >= long/samples*time.Duration(sampled+1) {
			half := &halves[sampled/(samples/2)]
			*half = half.least(use())
			sampled++
		}
	}
	return changes, halves
}

// usage is what this process uses.
type usage struct {
	heap                    uint64
	goroutines, descriptors int
}

func use() usage {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	descriptors, _ := os.ReadDir("/proc/self/fd")
	return usage{m.HeapAlloc, runtime.NumGoroutine(), len(descriptors)}
}

// least returns the smaller of each number. The zero value counts as unknown.
func (u usage) least(o usage) usage {
	if u == (usage{}) {
		return o
	}
	return usage{min(u.heap, o.heap), min(u.goroutines, o.goroutines), min(u.descriptors, o.descriptors)}
}

func (u usage) String() string {
	return fmt.Sprintf("heap %.1f MB, %d goroutines, %d file descriptors", float64(u.heap)/1e6, u.goroutines, u.descriptors)
}
