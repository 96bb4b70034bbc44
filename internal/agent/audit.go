package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// audit is a finished audit.
type audit struct {
	differences *kernel.Differences
	err         error
	// limited are the virtual servers that the audit limited up because of their connection limits.
	limited map[kernel.ServerKey]struct{}
	took    time.Duration
}

func setOf(keys []kernel.ServerKey) map[kernel.ServerKey]struct{} {
	set := make(map[kernel.ServerKey]struct{}, len(keys))
	for _, key := range keys {
		set[key] = struct{}{}
	}
	return set
}

// beginAudit starts to read the kernel outside the loop: with many Services a read takes long, and changes must not wait for it. The previous
// audit must have ended.
func (a *Agent) beginAudit(ctx context.Context, now time.Time) {
	a.schedule.Read(now)
	a.checks.AuditBegins()
	limited := diff.Limited(a.target, a.known.State())
	asked := a.known.BeginAudit(limited)
	a.background.start(func() func() {
		began := time.Now()
		differences, err := a.kernel.Audit(ctx, asked)
		found := &audit{differences: differences, err: err, limited: setOf(limited), took: time.Since(began)}
		return func() { a.pending.audit, a.pending.sync = found, true }
	})
}

// auditErr is why the audit failed that ended before this sync. The known state stays valid, and the sync applies changes as always.
func (s *syncRun) auditErr() error {
	if s.audit == nil || s.audit.err == nil {
		return nil
	}
	return fmt.Errorf("read the kernel's state: %w", s.audit.err)
}

// takeAudit takes over an audit's findings. It reports whether everything must be compared.
func (s *syncRun) takeAudit(ctx context.Context) (bool, error) {
	d := s.audit.differences
	unclear := s.known.Unseen(d)
	for _, key := range diff.Limited(s.target, s.known.State()) {
		_, reported := d.Servers[key]
		if _, limited := s.audit.limited[key]; reported && !limited && !s.known.Written(key) {
			unclear = append(unclear, key)
		}
	}
	var found map[kernel.ServerKey]kernel.ObservedServer
	if len(unclear) > 0 {
		var err error
		if found, err = s.kernel.Lookup(ctx, unclear); err != nil {
			return false, fmt.Errorf("look up virtual servers that the audit did not see in full: %w", err)
		}
	}
	for _, key := range unclear {
		d.Servers[key] = nil
		if server, exists := found[key]; exists {
			d.Servers[key] = &server
		}
	}
	if unseen := s.known.UnseenMembers(d); len(unseen) > 0 {
		found, err := s.kernel.LookupMembers(ctx, unseen)
		if err != nil {
			return false, fmt.Errorf("look up members of sets that the audit did not see: %w", err)
		}
		s.known.Exist(found)
	}
	s.rememberRules(&d.Base)
	differs := s.known.Merge(d)
	s.known.AskAgain(unclear)
	return differs, nil
}

// planAudit compares with an audit's findings. It counts no connections, because some may have begun since the read: destinations without
// connections are removed after the next count.
func (s *syncRun) planAudit(ctx context.Context) (diff.Plan, error) {
	differs, err := s.takeAudit(ctx)
	if err != nil {
		return diff.Plan{}, err
	}
	have := s.known.State()
	opt := s.options(have)
	if !differs && !diff.BaseDiffers(s.target, have, opt) {
		s.known.TouchSkipped(s.target, s.touched)
		s.report.Found = diff.Look(s.target, have, opt)
		return s.planTouched(ctx)
	}
	s.beginComparison(have)
	d, err := s.decide(ctx, have, diff.Scope{All: true}, opt, s.known.LookedUp)
	if err != nil {
		return diff.Plan{}, err
	}
	s.known.Compared()
	s.takeDecision(d)
	return s.known.Unverified().Without(d.Plan), nil
}
