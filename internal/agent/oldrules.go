package agent

import (
	"context"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// oldRules removes, outside the loop, what an earlier start left where this one keeps no sets and rules: that takes programs, which are slow
// or hang.
type oldRules struct {
	running bool
	// removed is true after nothing was left.
	removed bool
	// news is what no report has told yet.
	news oldRulesResult
}

// oldRulesResult is the error of the search, and the results of the removal.
type oldRulesResult struct {
	err     error
	results []Result
}

// removeOldRules starts to remove old rules when the present ones are complete: until then, the old ones may be the only ones. After a
// failure, the next full sync tries again.
func (s *syncRun) removeOldRules(ctx context.Context) {
	o := s.oldRules
	if o.running || o.removed || !s.report.rulesComplete() {
		return
	}
	o.running = true
	s.background.start(func() func() {
		r := remove(ctx, s.kernel)
		return func() { s.pending.sync = o.took(r) || s.pending.sync }
	})
}

func remove(ctx context.Context, k Kernel) oldRulesResult {
	old, err := k.FindOldRules(ctx)
	r := oldRulesResult{err: err}
	if len(old) == 0 {
		return r
	}
	ops := removalOf(old)
	for i, err := range k.Apply(ctx, ops) {
		r.results = append(r.results, Result{Op: ops[i], Err: err})
	}
	return r
}

// took takes over a result. It reports whether that is worth a report.
func (o *oldRules) took(r oldRulesResult) (news bool) {
	o.running, o.removed, o.news = false, r.err == nil, r
	for _, result := range r.results {
		o.removed = o.removed && result.Err == nil
	}
	return r.err != nil || len(r.results) > 0
}

// takeNews returns what no report has told yet.
func (o *oldRules) takeNews() oldRulesResult {
	news := o.news
	o.news = oldRulesResult{}
	return news
}

func removalOf(old []kernel.OldRules) []kernel.Op {
	ops := make([]kernel.Op, len(old))
	for i, rules := range old {
		ops[i] = kernel.Op{Verb: kernel.Delete, Object: rules}
	}
	return ops
}

// rulesComplete reports whether the rules are complete after the sync, even if other operations failed.
func (r *Report) rulesComplete() bool {
	for _, result := range r.Results {
		if result.Op.KindOf() == kernel.KindRules && (result.Err != nil || result.Skipped) {
			return false
		}
	}
	// If there are no results, the sync may have failed to read the kernel.
	return r.Full && len(r.rulesErr) == 0 && (r.Err == nil || len(r.Results) > 0)
}
