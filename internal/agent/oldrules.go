package agent

import (
	"context"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// oldRules removes the sets and rules that an earlier run left in another rule layer. It works outside the loop,
// because iptables can be slow or hang.
type oldRules struct {
	job[[]Result]
	removed bool
	results []Result
}

// start begins to remove old rules once the current rules are complete. Until then, the old rules may be the only
// working ones. After a failure, the next full sync tries again.
func (o *oldRules) start(ctx context.Context, b *background, k Kernel, r *Report, request func()) {
	if o.running() || o.removed || !r.rulesComplete() {
		return
	}
	o.job.start(b, func() ([]Result, error) { return removeOldRules(ctx, k) }, func(results []Result, err error) {
		o.removed, o.results = err == nil, results
		for _, result := range results {
			o.removed = o.removed && result.Err == nil
		}
		if err != nil || len(results) > 0 {
			request()
		}
	})
}

func removeOldRules(ctx context.Context, k Kernel) (results []Result, err error) {
	old, err := k.FindOldRules(ctx)
	if len(old) == 0 {
		return nil, err
	}
	ops := removalOf(old)
	for i, err := range k.Apply(ctx, ops) {
		results = append(results, Result{Op: ops[i], Err: err})
	}
	return results, err
}

func (o *oldRules) report(r *Report) {
	r.OldRules, r.OldRulesErr = o.results, o.err
	o.results, o.err = nil, nil
}

func removalOf(old []kernel.OldRules) []kernel.Op {
	ops := make([]kernel.Op, len(old))
	for i, rules := range old {
		ops[i] = kernel.Op{Verb: kernel.Delete, Object: rules}
	}
	return ops
}

func (r *Report) rulesComplete() bool {
	for _, result := range r.Results {
		if result.Op.KindOf() == kernel.KindRules && (result.Err != nil || result.Skipped) {
			return false
		}
	}
	// If there are no results, the sync may have failed before it wrote anything.
	return r.Full && len(r.rulesErr) == 0 && (r.Err == nil || len(r.Results) > 0)
}
