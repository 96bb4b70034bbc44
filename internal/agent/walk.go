package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/flows"
)

// walks are the results of walks through connection tracking since takeResult.
type walks struct {
	// ended counts the ended connections, err is the latest error, and failed says whether the latest walk failed.
	ended  int
	err    error
	failed bool
	// since is when the running walk began; zero if none runs.
	since time.Time
}

// walk is a finished walk.
type walk struct {
	check *flows.Check
	took  time.Duration
	ended int
	err   error
}

// startWalk begins a walk outside the loop: it takes long in a large connection tracking table, and Services must not wait. It reads only its
// check, which is a copy (I10). The previous walk must have ended.
func (a *Agent) startWalk(ctx context.Context, check *flows.Check) {
	began := time.Now()
	a.walks.since = began
	a.background.start(func() func() {
		ended, err := a.kernel.EndFlows(ctx, check.Protocols(), check.Stale)
		if err != nil {
			err = fmt.Errorf("end stale connections: %w", err)
		}
		w := walk{check: check, took: time.Since(began), ended: ended, err: err}
		return func() { a.pending.sync = a.walked(w) || a.pending.sync }
	})
}

// walked takes over a finished walk. It reports whether the walk's result is worth a report.
func (a *Agent) walked(w walk) bool {
	a.walks.since = time.Time{}
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
