package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/flows"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// walks end stale connections outside the loop: in a large connection tracking table, a walk takes a long time, and Services must not wait.
type walks struct {
	job[int]
	flows *flows.Flows
	// ended is the number of connections ended since the last call of takeEnded.
	ended int
}

// start begins a walk. It uses only its check, which is a copy (I10). The previous walk must have ended. It calls request if there is a
// result to report. A single failure is not worth a report, because it would count until the next audit.
func (w *walks) start(ctx context.Context, b *background, k Kernel, around flows.Surroundings, request func()) {
	check, failing, took := w.flows.Begin(around), w.failed >= manyFailures, time.Duration(0)
	walk := func() (int, error) {
		began := time.Now()
		ended, err := k.EndFlows(ctx, check.Protocols(), check.Stale)
		took = time.Since(began)
		if err != nil {
			err = fmt.Errorf("end stale connections: %w", err)
		}
		return ended, err
	}
	w.job.start(b, walk, func(ended int, err error) {
		w.flows.Finished(check, time.Now(), took, err)
		w.ended += ended
		if ended > 0 || failing != (w.failed >= manyFailures) {
			request()
		}
	})
}

// takeEnded returns the number of connections ended since the previous call.
func (w *walks) takeEnded() (ended int) {
	ended, w.ended = w.ended, 0
	return ended
}

func (w *walks) problems(node string) []model.Problem {
	return w.job.problems(node, trouble{
		"connection tracking", "clients of removed UDP and SCTP endpoints keep sending to them", "allow the failed operation; the kernel needs nf_conntrack_netlink",
	})
}
