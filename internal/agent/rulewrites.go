package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

const (
	// ruleGrace is how long a sync waits for the rules in any case, and rulePatience how long while no change in the cluster waits.
	ruleGrace    = 100 * time.Millisecond
	rulePatience = time.Second
)

// errUnfinished is the result of writing rules for which the sync did not wait. Whatever depends on them waits for an audit, which follows
// when the write ends.
var errUnfinished = errors.New("iptables has not finished yet")

// errOccupied is the result while an earlier write runs.
var errOccupied = fmt.Errorf("%w: an earlier write still runs", errUnfinished)

// writeRules writes rules outside the loop: iptables is a program, which may take long or hang, and neither endpoint changes nor the other family may
// wait for it (I16). The result of an operation that takes long is errUnfinished, and it goes on.
func (s *syncRun) writeRules(ctx context.Context, ops []kernel.Op) []error {
	errs := make([]error, len(ops))
	done, abandoned, running := make(chan ruleResult), make(chan struct{}), 0
	for i, op := range ops {
		family := op.Object.(kernel.Ruleset).Family
		if s.writingRules[family] {
			errs[i] = fmt.Errorf("%s: %w", op, errOccupied)
			continue
		}
		errs[i] = fmt.Errorf("%s: %w", op, errUnfinished)
		s.writingRules[family] = true
		running++
		s.background.start(func() func() {
			err := s.kernel.Apply(ctx, []kernel.Op{op})[0]
			select {
			case done <- ruleResult{i, family, err}:
				return nil
			case <-abandoned:
				return func() { s.takeLateRules(op, err) }
			}
		})
	}
	s.await(running, done, func(r ruleResult) { errs[r.op], s.writingRules[r.family] = r.err, false })
	close(abandoned)
	return errs
}

// ruleResult is the result of an operation on a family's rules.
type ruleResult struct {
	op     int
	family inet.Family
	err    error
}

// takeLateRules takes the result of a write for which no sync waited. An audit shows what a success has changed; the next sync reports a failure,
// and so tries again.
func (a *Agent) takeLateRules(op kernel.Op, err error) {
	a.writingRules[op.Object.(kernel.Ruleset).Family] = false
	if err == nil {
		a.schedule.AuditNow(time.Now())
		return
	}
	a.pending.lateRules = append(a.pending.lateRules, Result{Op: op, Err: err})
	a.pending.sync = true
}

// await waits for this many writes of rules, but not long, and less if a change in the cluster waits.
func (s *syncRun) await(running int, done <-chan ruleResult, take func(ruleResult)) {
	grace, patience := time.NewTimer(ruleGrace), time.NewTimer(rulePatience)
	defer grace.Stop()
	defer patience.Stop()
	var changed <-chan struct{}
	for running > 0 {
		select {
		case r := <-done:
			take(r)
			running--
		case <-grace.C:
			if s.source != nil {
				changed = s.source.Changed()
			}
		case <-changed:
			s.pending.sync = true
			return
		case <-patience.C:
			return
		}
	}
}
