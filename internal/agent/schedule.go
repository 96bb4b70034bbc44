package agent

import (
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// schedule decides when the kernel is read again.
func (a *Agent) schedule(now time.Time, report *Report) {
	if report.Full || a.auditAt.IsZero() { // the first attempt may have ended before it read anything
		a.auditAt = now.Add(a.cfg.AuditInterval)
	}
	switch {
	case report.Err != nil && (report.Full || !a.retryAt.After(now)): // not Full: the addresses could not be read before it
		a.retryAfter = min(max(2*a.retryAfter, retryMin), a.cfg.AuditInterval)
		a.retryAt = time.Now().Add(a.retryAfter)
	case report.Full:
		a.retryAt, a.retryAfter = time.Time{}, 0
	}
	if report.Err != nil {
		// A failure while a retry is waiting does not put it off: a busy cluster would never get to it.
		report.RetryAfter = time.Until(a.retryAt)
	}
	if a.stale {
		a.stale, a.auditAt = false, now
	}
}

// nextWake is when the loop has something to do though nothing changes.
func (a *Agent) nextWake() time.Time {
	wake := a.auditAt
	if !a.retryAt.IsZero() && a.retryAt.Before(wake) {
		wake = a.retryAt
	}
	if next := a.drains.nextLook; a.drains.any() && next.Before(wake) {
		wake = next
	}
	if !a.ramps.next.IsZero() && a.ramps.next.Before(wake) {
		wake = a.ramps.next
	}
	if a.have != nil && a.flows.waiting() && a.flows.lookAt.Before(wake) {
		wake = a.flows.lookAt
	}
	return wake
}

// auditSoon brings the next audit forward, but never reads the kernel more often than auditMin.
func (a *Agent) auditSoon() {
	if next := a.lastRead.Add(auditMin); next.Before(a.auditAt) {
		a.auditAt = next
	}
}

// hurry brings the next reading forward because a change waits for it, but never reads more often than auditMin.
func (a *Agent) hurry(touched *want.Touched) {
	if len(a.doubtful) == 0 || !a.doubtful.concerns(touched) {
		return
	}
	if soon := a.lastRead.Add(auditMin); soon.Before(a.retryAt) {
		a.retryAt = soon
	}
}

// due says whether the kernel is to be read and compared as a whole.
func (a *Agent) due(now time.Time) bool {
	audit := !now.Before(a.auditAt)
	retry := !a.retryAt.IsZero() && !now.Before(a.retryAt)
	return a.have == nil || audit || retry
}
