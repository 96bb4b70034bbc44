package scale

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
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
// full sync nor count as drift.
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
	services := map[model.ServiceID]*model.Service{}
	for n := range churningServices {
		svc := newService(n, 2)
		services[svc.ID] = svc
	}
	s := newSource(services)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	full, syncs, changes, ready := 0, 0, 0, make(chan struct{})
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
		changes = churn(s, long)
	})
	agent.New(agent.Config{
		Compile: cfg, AuditInterval: 10 * time.Second, DrainInterval: 10 * time.Second, DrainTimeout: time.Minute, Observe: observe,
	}, s, k, zap.NewNop()).Run(ctx) // on this goroutine, which is in the network namespace
	changing.Wait()
	t.Attr("figure", fmt.Sprintf("%s: %d changes, %d syncs, %d of them full", long, changes, syncs, full))
	if full < int(long/time.Minute) || // an audit takes a long time on a slow machine
		changes < churnRate*int(long/time.Second)/4 {
		t.Errorf("only %d full syncs and %d changes", full, changes)
	}
}

func churn(s *source, long time.Duration) (changes int) {
	rng := rand.New(rand.NewPCG(1, 2))
	tick := time.NewTicker(time.Second / churnRate)
	defer tick.Stop()
	for end := time.Now().Add(long); time.Now().Before(end); <-tick.C {
		s.change(newService(rng.IntN(churningServices), 1+rng.IntN(4)))
		changes++
	}
	return changes
}
