// Package schedule decides when the agent audits the kernel, retries after a failure, or wakes up although
// nothing has changed.
//
// May import: no other kube-ipvs packages. The package has no clock: callers pass the time.
package schedule

import "time"

const (
	// minBackoff is the delay before the first retry. Each further failure doubles the delay, up to the audit interval.
	minBackoff = 100 * time.Millisecond
	// minBetweenReads is the minimum time between two full reads, regardless of how often other programs change the
	// kernel.
	minBetweenReads = time.Second
	// While quick checks succeed, audits that find nothing become less frequent, so that reads take at most 1/share
	// of the time. longest is the maximum time between two audits. Some changes can only be found by audits.
	share   = 2000
	longest = 5 * time.Minute
)

// Intervals are the configured intervals.
type Intervals struct {
	// Audit is the time between two audits, which compare everything with the kernel.
	Audit time.Duration
	// Min is the minimum time between the starts of two syncs.
	Min time.Duration
	// Spacing is the average time between syncs during a storm of changes, because each sync has a fixed cost.
	Spacing time.Duration
}

// burst is the number of syncs that may follow each other without Spacing, so that a few changes never wait.
const burst = 10

// Schedule tracks when the next full read is due. It is ready to use after its Intervals are set.
type Schedule struct {
	Intervals

	// distance is the interval that auditAt is based on, and zero until a sync has ended.
	auditAt  time.Time
	distance time.Duration
	// retryAt is zero if the last sync succeeded.
	retryAt  time.Time
	backoff  time.Duration
	lastRead time.Time
	// reading is true until the result of a full read has been compared. During that time, next is the requested time
	// of the next read, and failed is true if a sync has failed.
	reading, failed bool
	next            time.Time
	// notBefore is the earliest time for the next sync.
	notBefore time.Time
	// rested is the time at which a full burst is available again.
	rested    time.Time
	requested bool
}

// Request requests a sync as soon as possible.
func (s *Schedule) Request() { s.requested = true }

// Requested reports whether a sync was requested since the last one began.
func (s *Schedule) Requested() bool { return s.requested }

// Begin records the start of a sync.
func (s *Schedule) Begin(now time.Time) {
	s.notBefore, s.requested = now.Add(s.Min), false
	if s.rested.Before(now) {
		s.rested = now
	}
	s.rested = s.rested.Add(s.Spacing)
}

// Wait returns how long the next sync must wait because of Min. The result is zero or negative if it may start.
func (s *Schedule) Wait(now time.Time) time.Duration { return s.notBefore.Sub(now) }

// Started reports whether a sync has ended.
func (s *Schedule) Started() bool { return s.distance > 0 }

// Retrying reports whether a failed sync is waiting for its retry.
func (s *Schedule) Retrying() bool { return !s.retryAt.IsZero() }

// RetryAt returns the time at which the failed sync is retried, or zero if no sync has failed.
func (s *Schedule) RetryAt() time.Time { return s.retryAt }

// ReadDue reports whether a full read is due.
func (s *Schedule) ReadDue(now time.Time) bool {
	return !s.reading && (!now.Before(s.auditAt) || s.Retrying() && !now.Before(s.retryAt))
}

// Read records the start of a full read.
func (s *Schedule) Read(now time.Time) {
	s.lastRead, s.reading, s.failed, s.next = now, true, false, time.Time{}
}

// Reading returns the time since the current audit began to read the kernel, or 0 if no audit is in progress.
func (s *Schedule) Reading(now time.Time) time.Duration {
	if !s.reading {
		return 0
	}
	return now.Sub(s.lastRead)
}

// Outcome describes a completed sync.
type Outcome struct {
	Started, Ended time.Time
	Full, Failed   bool
	// Calm is true if the audit found nothing and quick checks would find most later changes.
	Calm bool
	Took time.Duration
}

// Distance returns the time from the start of the last full sync to the next regular one, or 0 before the first sync.
func (s *Schedule) Distance() time.Duration { return s.distance }

func (s *Schedule) distanceAfter(o Outcome) time.Duration {
	if !o.Calm || o.Failed {
		return s.Audit
	}
	return max(s.Audit, min(share*o.Took, longest))
}

// Finish schedules the next audit and the retry.
func (s *Schedule) Finish(o Outcome) {
	if o.Full {
		s.distance = s.distanceAfter(o)
		s.auditAt = o.Started.Add(s.distance)
		if !s.next.IsZero() && s.next.Before(s.auditAt) {
			s.auditAt = s.next
		}
		s.next = time.Time{}
	}
	unread := s.failed
	s.reading, s.failed = s.reading && !o.Full, s.reading && !o.Full && (s.failed || o.Failed)
	switch {
	case o.Failed && (o.Full || !s.retryAt.After(o.Started)): // an incremental sync fails here only if it cannot read the node's addresses
		s.backoff = min(max(2*s.backoff, minBackoff), s.Audit)
		s.retryAt = o.Ended.Add(s.backoff)
	case o.Full && !unread:
		s.retryAt, s.backoff = time.Time{}, 0
	}
	// A failure does not postpone a pending retry. Otherwise the retry might never happen in a busy cluster.
}

// AuditNow requests an immediate audit.
func (s *Schedule) AuditNow(now time.Time) { s.auditAt, s.next = now, now }

// AuditSoon schedules the next audit earlier, but at least a second, and at least the given distance, after the last
// full read.
func (s *Schedule) AuditSoon(distance time.Duration) {
	soon := s.lastRead.Add(max(minBetweenReads, distance))
	if s.reading && (s.next.IsZero() || soon.Before(s.next)) {
		s.next = soon
	}
	if soon.Before(s.auditAt) {
		s.auditAt = soon
	}
}

// RetrySoon schedules the pending retry earlier because a change is waiting for it, but at least a second after the
// last full read.
func (s *Schedule) RetrySoon() {
	if soon := s.lastRead.Add(minBetweenReads); soon.Before(s.retryAt) {
		s.retryAt = soon
	}
}

// RetryStep returns the time at which a failed step is retried.
func RetryStep(now time.Time) time.Time { return now.Add(minBackoff) }

// NextSync returns the start time of the next sync: as soon as possible if requested, otherwise the earliest nonzero
// deadline, or zero if there is none.
func (s *Schedule) NextSync(now time.Time, deadlines ...time.Time) time.Time {
	at := now
	if !s.requested {
		at = Earliest(deadlines...)
	}
	earliest := s.notBefore
	if spaced := s.rested.Add(-(burst - 1) * s.Spacing); spaced.After(earliest) {
		earliest = spaced
	}
	if at.IsZero() || at.After(earliest) {
		return at
	}
	return earliest
}

// NextWake returns the time at which the agent must wake up without a change: the next audit, retry or nonzero
// deadline, or zero if there is none. The result of a running read wakes the agent.
func (s *Schedule) NextWake(deadlines ...time.Time) time.Time {
	if !s.reading {
		deadlines = append(deadlines, s.auditAt, s.retryAt)
	}
	return Earliest(deadlines...)
}

// Earliest returns the earliest of these times; zero means never.
func Earliest(times ...time.Time) (first time.Time) {
	for _, at := range times {
		if !at.IsZero() && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first
}
