package agent

import (
	"fmt"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

type syncRun struct {
	now         time.Time
	touched     *want.Touched
	report      *Report
	audit       *audit
	reads       bool
	comparedAll bool
	// unexplained is true if no known change explains the differences that an audit found, so they are drift.
	// rulesUnexplained is the same for rules.
	unexplained, rulesUnexplained bool
	// rulesRead and sysctlsRead contain what an audit read before this sync wrote anything.
	rulesRead   map[inet.Family]kernel.RulesView
	sysctlsRead map[string]string
}

// full reports whether this sync compares everything with the kernel.
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

type audit struct {
	differences *kernel.Differences
	err         error
	limited     map[kernel.ServerKey]struct{}
	took        time.Duration
}

// confirms reports whether the audit found the node's addresses and networks unchanged. Only an audit reads them without delaying changes.
func (a *audit) confirms(node *kernel.Node) bool {
	return a.err == nil && a.differences.Node != nil && node != nil && a.differences.Node.Equal(node)
}

// failure returns the error of the audit that ended before this sync. The known state stays valid after an error.
func (a *audit) failure() error {
	if a == nil || a.err == nil {
		return nil
	}
	return fmt.Errorf("read the kernel's state: %w", a.err)
}
