package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

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

// writeRules writes rules outside the loop: iptables is a program, which may take long or hang, and endpoint changes must not wait for it
// (I16). If it takes long, the result is errUnfinished for each operation, and the write goes on.
func (s *syncRun) writeRules(ctx context.Context, ops []kernel.Op) []error {
	if s.writingRules {
		return unfinished(ops, errOccupied)
	}
	s.writingRules = true
	done, abandoned := make(chan []error), make(chan struct{})
	s.background.start(func() func() {
		errs := s.kernel.Apply(ctx, ops)
		select {
		case done <- errs:
			return nil
		case <-abandoned:
			return func() { s.takeLateRules(ops, errs) }
		}
	})
	if errs, ended := s.await(done); ended {
		s.writingRules = false
		return errs
	}
	close(abandoned)
	return unfinished(ops, errUnfinished)
}

// takeLateRules takes the results of a write for which no sync waited. An audit shows what a success has changed; the next sync reports a failure,
// and so tries again.
func (a *Agent) takeLateRules(ops []kernel.Op, errs []error) {
	a.writingRules = false
	failed := false
	for i, err := range errs {
		if err != nil {
			failed = true
			a.pending.lateRules = append(a.pending.lateRules, Result{Op: ops[i], Err: err})
		}
	}
	if failed {
		a.pending.sync = true
	} else {
		a.schedule.AuditNow(time.Now())
	}
}

// await waits for a write of rules, but not long, and less if a change in the cluster waits.
func (s *syncRun) await(done <-chan []error) (errs []error, ended bool) {
	grace, patience := time.NewTimer(ruleGrace), time.NewTimer(rulePatience)
	defer grace.Stop()
	defer patience.Stop()
	select {
	case errs := <-done:
		return errs, true
	case <-grace.C:
	}
	var changed <-chan struct{}
	if s.source != nil {
		changed = s.source.Changed()
	}
	select {
	case errs := <-done:
		return errs, true
	case <-changed:
		s.pending.sync = true
	case <-patience.C:
	}
	return nil, false
}

func unfinished(ops []kernel.Op, err error) []error {
	errs := make([]error, len(ops))
	for i, op := range ops {
		errs[i] = fmt.Errorf("%s: %w", op, err)
	}
	return errs
}
