package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

const (
	// A sync waits up to ruleGrace for unfinished rule writes, or up to rulePatience while no change in the cluster is
	// waiting.
	ruleGrace    = 100 * time.Millisecond
	rulePatience = time.Second
)

// writeRules writes rules outside the loop, because iptables may be slow or hang. Neither endpoint changes nor the
// other IP family may wait for it (I16). If an operation takes too long, it continues in the background, and its
// result is errUnfinished.
func (w *writer) writeRules(ctx context.Context, ops []kernel.Op) []error {
	errs := make([]error, len(ops))
	done, abandoned, running := make(chan ruleResult), make(chan struct{}), 0
	for i, op := range ops {
		family := op.Object.(kernel.Ruleset).Family
		if w.writingRules[family] {
			errs[i] = fmt.Errorf("%s: %w", op.In(w.cfg.Compile.Mode), errOccupied)
			continue
		}
		errs[i] = fmt.Errorf("%s: %w", op.In(w.cfg.Compile.Mode), errUnfinished)
		w.writingRules[family] = true
		running++
		w.background.start(func() func() {
			err := w.kernel.Apply(ctx, []kernel.Op{op})[0]
			select {
			case done <- ruleResult{i, family, err}:
				return nil
			case <-abandoned:
				return func() { w.takeLateRules(op, err) }
			}
		})
	}
	w.await(running, done, func(r ruleResult) {
		errs[r.op], w.writingRules[r.family], w.wroteRules = r.err, false, w.wroteRules || r.err == nil
	})
	close(abandoned)
	return errs
}

type ruleResult struct {
	op     int
	family inet.Family
	err    error
}

// After a success, an audit reads the new rules. After a failure, the next sync reports the failure and retries the
// write.
func (w *writer) takeLateRules(op kernel.Op, err error) {
	w.writingRules[op.Object.(kernel.Ruleset).Family] = false
	if err == nil {
		w.wroteRules = true
		w.schedule.AuditNow(time.Now())
		return
	}
	w.lateRules = append(w.lateRules, Result{Op: op, Err: err})
	w.schedule.Request()
}

func (w *writer) await(running int, done <-chan ruleResult, take func(ruleResult)) {
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
			if w.source != nil {
				changed = w.source.Changed()
			}
		case <-changed:
			w.schedule.Request()
			return
		case <-patience.C:
			return
		}
	}
}
