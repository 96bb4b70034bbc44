package agent

import (
	"context"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// oldRules removes the sets and rules that an earlier run left in another rule layer. It works outside the loop,
// because iptables can be slow or hang.
type oldRules struct {
	job[removal]
	removed bool
	results []Result
}

// removal is the result of one attempt. kept is true if some old rules must stay until everything is complete.
type removal struct {
	results []Result
	kept    bool
}

// start begins to remove old rules once the current rules are complete. Until then, the old rules may be the only
// working ones. After a failure, the next full sync tries again.
func (o *oldRules) start(ctx context.Context, b *background, k Kernel, r *Report, request func()) {
	if o.running() || o.removed || !r.rulesComplete() {
		return
	}
	complete := r.Complete()
	o.job.start(b, func() (removal, error) { return removeOldRules(ctx, k, complete) }, func(done removal, err error) {
		o.removed, o.results = err == nil && !done.kept, done.results
		for _, result := range done.results {
			o.removed = o.removed && result.Err == nil
		}
		if err != nil || len(done.results) > 0 {
			request()
		}
	})
}

// The old rules in nftables may also contain the virtual servers, so they stay until everything is complete.
func removeOldRules(ctx context.Context, k Kernel, complete bool) (done removal, err error) {
	old, err := k.FindOldRules(ctx)
	found := len(old)
	if !complete {
		old = slices.DeleteFunc(old, func(r kernel.OldRules) bool { return r.Variant == kernel.RulesNFTables })
	}
	if done.kept = len(old) < found; len(old) == 0 {
		return done, err
	}
	ops := removalOf(old)
	for i, err := range k.Apply(ctx, ops) {
		done.results = append(done.results, Result{Op: ops[i], Err: err})
	}
	return done, err
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
	return r.Full && len(r.rulesErr) == 0
}
