package agent

import (
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/flows"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/schedule"
)

// Agent keeps one node's kernel in the wanted state.
type Agent struct {
	cfg *Config
	*steps
	schedule *schedule.Schedule
	// audits, checks, walks and oldRules run outside the loop.
	audits     *audits
	checks     *checks
	walks      *walks
	oldRules   *oldRules
	background *background
	// startup serves this node until the source has synced.
	startup *startup
	reports *reports
	// moved is called once the rules of a new data plane are in the kernel; nil if the agent is not moving.
	moved func()
}

// New returns an agent; Run starts it.
func New(cfg Config, source Source, k Kernel, log *zap.Logger) *Agent {
	startup := newStartup(&cfg, k, log)
	cfg.LastKnown = nil // so that the state can be freed when it is no longer needed
	s, b := &schedule.Schedule{Intervals: cfg.intervals()}, newBackground()
	s.Request()
	return &Agent{
		cfg: &cfg, steps: newSteps(&cfg, source, k, s, b), schedule: s,
		audits: &audits{}, checks: &checks{cfg: &cfg, again: true}, walks: &walks{flows: flows.New(cfg.Compile.Mode.NFTablesBalances())}, oldRules: &oldRules{}, background: b,
		startup: startup, reports: newReports(&cfg, log),
	}
}

func (a *Agent) reload(settings Settings) {
	a.cfg.Compile.Settings, a.cfg.DrainTimeout = settings.Compile, settings.DrainTimeout
	a.cfg.AuditInterval, a.cfg.CheckInterval, a.cfg.MinInterval = settings.AuditInterval, settings.CheckInterval, settings.MinInterval
	a.schedule.Intervals = a.cfg.intervals()
	a.planner.reconfigure(settings.Compile)
	a.schedule.Request()
	a.schedule.AuditNow(time.Now())
}
