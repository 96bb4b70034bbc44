package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/flows"
)

// walks run outside the loop, one at a time: walking a large connection tracking table takes long, and Services must not wait. A walk reads
// only its check, which is a copy (I10).
type walks struct {
	kernel Kernel
	done   chan walk
	wg     sync.WaitGroup

	// ended and err are the results of walks since takeResult; failed says whether the latest walk failed.
	ended  int
	err    error
	failed bool
}

// walk is a finished walk.
type walk struct {
	check *flows.Check
	took  time.Duration
	ended int
	err   error
}

func newWalks(k Kernel) *walks { return &walks{kernel: k, done: make(chan walk, 1)} }

// start begins a walk. The previous one must have ended.
func (w *walks) start(ctx context.Context, check *flows.Check) {
	w.wg.Go(func() {
		began := time.Now()
		ended, err := w.kernel.EndFlows(ctx, check.Protocols(), check.Stale)
		if err != nil {
			err = fmt.Errorf("end stale connections: %w", err)
		}
		w.done <- walk{check: check, took: time.Since(began), ended: ended, err: err}
	})
}

// wait waits for a running walk to end.
func (w *walks) wait() { w.wg.Wait() }

// walked takes over a finished walk. It reports whether the walk's result is worth a report.
func (a *Agent) walked(w walk) bool {
	a.flows.Finished(w.check, time.Now(), w.took, w.err)
	news := w.ended > 0 || w.err != nil || a.walks.failed
	a.walks.ended, a.walks.err, a.walks.failed = a.walks.ended+w.ended, w.err, w.err != nil
	return news
}

// takeResult returns the results of walks since the previous call.
func (w *walks) takeResult() (ended int, err error) {
	ended, err = w.ended, w.err
	w.ended, w.err = 0, nil
	return ended, err
}
