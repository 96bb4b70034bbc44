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

// writeRules writes rules outside the loop: iptables is a program, which may take long or hang, and endpoint changes must not wait for it
// (I16). If it takes long, the result is errUnfinished for each operation, and the write goes on.
func (s *syncRun) writeRules(ctx context.Context, ops []kernel.Op) []error {
	if s.writingRules {
		return unfinished(ops)
	}
	s.writingRules = true
	done, abandoned := make(chan []error), make(chan struct{})
	s.background.start(func() func() {
		errs := s.kernel.Apply(ctx, ops)
		select {
		case done <- errs:
			return nil
		case <-abandoned:
			return func() { s.lateRules(errs) }
		}
	})
	if errs, ended := s.await(done); ended {
		s.writingRules = false
		return errs
	}
	close(abandoned)
	return unfinished(ops)
}

// lateRules takes note of a write for which no sync waited. After a failure, the next audit tries again.
func (a *Agent) lateRules(errs []error) {
	a.writingRules = false
	if errors.Join(errs...) != nil {
		a.schedule.AuditSoon(a.cfg.AuditInterval)
		return
	}
	a.schedule.AuditNow(time.Now())
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

func unfinished(ops []kernel.Op) []error {
	errs := make([]error, len(ops))
	for i, op := range ops {
		errs[i] = fmt.Errorf("%s: %w", op, errUnfinished)
	}
	return errs
}
