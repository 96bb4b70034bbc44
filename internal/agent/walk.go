package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/flows"
)

// walks run beside the loop, one at a time: a walk through a large table of tracked connections takes long, and no Service waits for it.
// A walk reads only its check, which is a copy (I10).
type walks struct {
	kernel Kernel
	done   chan walk
	wg     sync.WaitGroup

	// ended and err are what finished walks did since takeResult; failed says that the last one did.
	ended  int
	err    error
	failed bool
}

// walk is a finished one.
type walk struct {
	check *flows.Check
	took  time.Duration
	ended int
	err   error
}

func newWalks(k Kernel) *walks { return &walks{kernel: k, done: make(chan walk, 1)} }

// start begins a walk. The previous one must be finished.
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

// wait returns when no walk runs.
func (w *walks) wait() { w.wg.Wait() }

// walked takes over a finished walk. It reports whether there is something to report.
func (a *Agent) walked(w walk) bool {
	a.flows.Finished(w.check, time.Now(), w.took, w.err)
	news := w.ended > 0 || w.err != nil || a.walks.failed
	a.walks.ended, a.walks.err, a.walks.failed = a.walks.ended+w.ended, w.err, w.err != nil
	return news
}

// takeResult returns what walks did since the last call.
func (w *walks) takeResult() (ended int, err error) {
	ended, err = w.ended, w.err
	w.ended, w.err = 0, nil
	return ended, err
}
