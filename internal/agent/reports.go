package agent

import (
	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/journal"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

type reports struct {
	history   *history
	journal   *journal.Ring
	observers []func(*Report)
	stuck     map[string]kernel.StuckError
	// held counts the Services that the agent keeps although the API server's list lacks them.
	held     int
	problems *KnownProblems
	triggers []model.Trigger
}

func newReports(cfg *Config, log *zap.Logger) *reports {
	r := &reports{history: newHistory(), journal: journal.New(), stuck: map[string]kernel.StuckError{}, problems: NewKnownProblems(cfg.Compile.NodeName)}
	r.observers = []func(*Report){r.history.observe, newReportLog(cfg, log).observe, func(report *Report) { record(r.journal, report, cfg.Compile.Mode) }}
	if cfg.Observe != nil {
		r.observers = append(r.observers, func(r *Report) { cfg.Observe(*r) })
	}
	return r
}

const maxTriggers = 10_000

func (r *reports) take(changes model.Changes, to *Report) {
	to.Unreadable, r.held = changes.Problems, changes.Held
	triggers := append(r.triggers, changes.Triggers...)
	r.triggers = triggers[max(0, len(triggers)-maxTriggers):]
}

// applied is true if no step of the sync failed. Failures to read the rules do not count.
func (r *reports) finish(report *Report, applied bool) {
	if applied && report.Waiting == nil && !report.Partial {
		report.Programmed, r.triggers = r.triggers, nil
	}
	report.noteStuck(r.stuck)
	r.problems.Update(report)
	for _, observe := range r.observers {
		observe(report)
	}
}
