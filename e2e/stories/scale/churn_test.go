package scale

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/labtest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

const (
	churningServices = 10_000
	churnRate        = 200 // changes a second
	// churnVariable is how long TestChurn changes Services.
	churnVariable = "KUBE_IPVS_CHURN"
)

// TestChurn changes 200 of 10,000 Services a second, while an audit reads the kernel every ten seconds: a list that misses an object because
// another one changes must neither fail a full sync nor count as drift.
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
	s := &churn{changed: make(chan struct{}, 1), pending: map[model.ServiceID]*model.Service{}}
	for n := range churningServices {
		s.put(newService(n, 2))
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	full, syncs, ready := 0, 0, make(chan struct{})
	observe := func(r agent.Report) {
		syncs++
		if r.Err != nil || r.Drift > 0 {
			t.Errorf("a sync (full: %t) after %d: drift %d, %v", r.Full, syncs, r.Drift, r.Err)
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
		s.run(long)
	})
	agent.New(agent.Config{
		Compile: cfg, AuditInterval: 10 * time.Second, DrainInterval: 10 * time.Second, DrainTimeout: time.Minute, Observe: observe,
	}, s, k, zap.NewNop()).Run(ctx) // here, because this goroutine is in the network namespace
	changing.Wait()
	t.Attr("figure", fmt.Sprintf("%s: %d changes, %d syncs, %d of them full", long, s.changes, syncs, full))
	if full < int(long/time.Minute) || // an audit takes long on a slow machine
		s.changes < churnRate*int(long/time.Second)/4 {
		t.Errorf("only %d full syncs and %d changes", full, s.changes)
	}
}

// churn is a source of which another goroutine changes the Services.
type churn struct {
	mu      sync.Mutex
	pending map[model.ServiceID]*model.Service
	changed chan struct{}
	changes int
}

func (c *churn) put(svc *model.Service) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending[svc.ID] = svc
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// run gives random Services other endpoints.
func (c *churn) run(long time.Duration) {
	rng := rand.New(rand.NewPCG(1, 2))
	tick := time.NewTicker(time.Second / churnRate)
	defer tick.Stop()
	for end := time.Now().Add(long); time.Now().Before(end); <-tick.C {
		c.put(newService(rng.IntN(churningServices), 1+rng.IntN(4)))
		c.changes++
	}
}

func (c *churn) Changed() <-chan struct{} { return c.changed }
func (c *churn) Synced() bool             { return true }

func (c *churn) Take() model.Changes {
	c.mu.Lock()
	defer c.mu.Unlock()
	changes := model.Changes{Services: maps.Clone(c.pending)}
	clear(c.pending)
	return changes
}
