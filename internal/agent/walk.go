package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/flows"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// walks end stale connections outside the loop, because walking a large connection tracking table takes a long time.
type walks struct {
	job[int]
	flows *flows.Flows
	ended int
}

// start works on a copy of the flows to check (I10), and calls request if there is a result to report. It does not
// report a single failure, because a reported failure counts until the next audit.
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

func (w *walks) takeEnded() (ended int) {
	ended, w.ended = w.ended, 0
	return ended
}

func (w *walks) problems(node string) []model.Problem {
	return w.job.problems(node, trouble{
		"connection tracking", "UDP and SCTP clients may keep sending to removed endpoints, or get no replies", "allow the failed operation; the kernel needs nf_conntrack_netlink",
	})
}
