package agent

import (
	"cmp"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// syncRun is one running sync.
type syncRun struct {
	*Agent
	now time.Time
	// touched are the objects whose wanted state may have changed.
	touched *want.Touched
	report  *Report
	// audit is an audit that ended before this sync; nil if none did.
	audit *audit
	// reads is true if the agent had not read the kernel before this sync.
	reads bool
	// listenersErr is why the sockets of the node's processes could not be listed.
	listenersErr error
	// comparedAll is true if everything was compared with the kernel.
	comparedAll bool
	// unexplained is true if no change known to the agent explains the differences that an audit found, so they are drift.
	unexplained bool
	// rulesUnexplained is the same for the rules.
	rulesUnexplained bool
	// rulesRead and sysctlsRead are what an audit read before this sync wrote anything.
	rulesRead   map[inet.Family]kernel.RulesView
	sysctlsRead map[string]string
}

func (a *Agent) newSync(now time.Time) *syncRun {
	touched := cmp.Or(a.pending.touched, want.NewTouched())
	a.pending.touched = nil
	return &syncRun{
		Agent: a, now: now, touched: touched, report: &Report{Started: now, Period: period(a.cfg.AuditInterval, a.cfg.CheckInterval)},
		reads: a.known.State() == nil,
	}
}

// compile compiles what has changed.
func (s *syncRun) compile() {
	s.report.compiled(s.cluster.Compile(s.touched))
	s.target.Follow(s.touched)
}

// full reports whether this sync follows a read of the whole kernel or starts with one.
func (s *syncRun) full() bool { return s.reads || s.audit != nil }
