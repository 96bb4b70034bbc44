package agent

import (
	"context"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// removeOldRules removes rules that a previous run of the agent left in the other iptables variant. It does so once, when the rules in the
// current variant are complete: until then, the old rules may be the only ones.
func (s *syncRun) removeOldRules(ctx context.Context) {
	if s.oldRulesDone || !s.report.rulesComplete() {
		return
	}
	s.oldRulesDone = true
	old, err := s.kernel.FindOldRules(ctx)
	if ctx.Err() != nil {
		return // the next start looks again
	}
	if s.report.OldRulesErr = err; len(old) == 0 {
		return
	}
	ops := removalOf(old)
	for i, err := range s.kernel.Apply(ctx, ops) {
		s.report.OldRules = append(s.report.OldRules, Result{Op: ops[i], Err: err})
	}
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
	return r.Full && (r.Err == nil || len(r.Results) > 0)
}
