package agent

import (
	"fmt"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// syncRun is the state of one sync.
type syncRun struct {
	now time.Time
	// touched are the objects whose wanted state may have changed.
	touched *want.Touched
	report  *Report
	// audit is the audit that ended before this sync; nil if there is none.
	audit *audit
	// reads is true if this sync is the agent's first read of the kernel.
	reads bool
	// comparedAll is true if everything was compared with the kernel.
	comparedAll bool
	// unexplained is true if no change known to the agent explains the differences that an audit found, which makes them drift.
	// rulesUnexplained is the same for rules.
	unexplained, rulesUnexplained bool
	// rulesRead and sysctlsRead are the rules and sysctls that an audit read before this sync wrote anything.
	rulesRead   map[inet.Family]kernel.RulesView
	sysctlsRead map[string]string
}

// full reports whether this sync follows a read of the whole kernel or starts with one.
func (s *syncRun) full() bool { return s.reads || s.audit != nil }

func (s *syncRun) kind() view.SyncKind {
	switch {
	case s.reads:
		return view.SyncFull
	case s.report.Drift > 0:
		return view.SyncRepair
	case s.audit != nil:
		return view.SyncAudit
	}
	return view.SyncIncremental
}

// audit is a finished audit.
type audit struct {
	differences *kernel.Differences
	err         error
	// limited are the virtual servers that the audit looked up because of their connection limits.
	limited map[kernel.ServerKey]struct{}
	took    time.Duration
}

// failure returns the error of the audit that ended before this sync. The known state stays valid, and the sync applies changes as usual.
func (a *audit) failure() error {
	if a == nil || a.err == nil {
		return nil
	}
	return fmt.Errorf("read the kernel's state: %w", a.err)
}
