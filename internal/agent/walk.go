package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/flows"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// manyWalks is how many consecutive walks must fail to be a Problem. One is no failure of a sync: it would count until the next audit.
const manyWalks = 3

// walks are walks through connection tracking.
type walks struct {
	// ended counts the connections that were ended since takeEnded.
	ended int
	// failed counts consecutive failed walks; err is the error of the latest.
	failed int
	err    error
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
	failing := a.walks.failed >= manyWalks
	if a.walks.failed++; w.err == nil {
		a.walks.failed = 0
	}
	a.walks.ended, a.walks.err = a.walks.ended+w.ended, w.err
	return w.ended > 0 || failing != (a.walks.failed >= manyWalks)
}

// takeEnded returns how many connections were ended since the previous call.
func (w *walks) takeEnded() (ended int) {
	ended, w.ended = w.ended, 0
	return ended
}

// walkProblems returns the Problem that walks fail, or do not end.
func (a *Agent) walkProblems() []model.Problem {
	const effect = "clients of removed UDP and SCTP endpoints keep them"
	if age := time.Since(a.walks.since); !a.walks.since.IsZero() && age > tooLong {
		return []model.Problem{a.unended("connection tracking", age, effect)}
	}
	if a.walks.failed < manyWalks {
		return nil
	}
	return []model.Problem{{
		Object: model.NodeRef(a.cfg.Compile.NodeName), Field: "connection tracking",
		Reason: fmt.Sprintf("failing (%v); %s", a.walks.err, effect),
		Remedy: "allow the failed operation; the kernel needs nf_conntrack_netlink",
	}}
}
