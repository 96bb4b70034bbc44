// Package schedule decides when the agent works: when it reads the whole kernel, retries after a failure, or wakes up without a change.
//
// May import: no other kube-ipvs packages. It has no clock: callers pass the time.
package schedule

import "time"

const (
	// minBackoff is the wait before the first retry. Each further failure doubles it, up to the audit interval.
	minBackoff = 100 * time.Millisecond
	// minBetweenReads is the minimum time between two full reads, however often other programs change the kernel.
	minBetweenReads = time.Second
	// share and longest bound the time between audits that find nothing while quick checks watch. Reading takes at most 1/share of the time,
	// and a change that only audits detect is found within minutes.
	share   = 500
	longest = 5 * time.Minute
)

// Intervals are the configured intervals.
type Intervals struct {
	// Audit is the time between two audits, which compare with the whole kernel.
	Audit time.Duration
	// Min is the minimum time between the starts of two syncs.
	Min time.Duration
}

// Schedule tracks when the next full read is due. The zero value is ready to use after its Intervals are set.
type Schedule struct {
	Intervals

	// auditAt is zero until a sync has ended.
	auditAt time.Time
	// retryAt is when the failed sync is retried; zero if the last one succeeded.
	retryAt  time.Time
	backoff  time.Duration
	lastRead time.Time
	// reading is true until the result of a full read has been compared. While it is true, next is the requested time of the following read,
	// and failed is true if a sync failed.
	reading, failed bool
	next            time.Time
	// notBefore is when the next sync may start; requested is true if one was requested without a deadline.
	notBefore time.Time
	requested bool
}

// Request asks for a sync as soon as possible.
func (s *Schedule) Request() { s.requested = true }

// Requested reports whether a sync was requested since the last one began.
func (s *Schedule) Requested() bool { return s.requested }

// Begin records the start of a sync.
func (s *Schedule) Begin(now time.Time) { s.notBefore, s.requested = now.Add(s.Min), false }

// Wait is how long the next sync must wait; zero or negative if it may start.
func (s *Schedule) Wait(now time.Time) time.Duration { return s.notBefore.Sub(now) }

// Started reports whether a sync has ended before, successful or not.
func (s *Schedule) Started() bool { return !s.auditAt.IsZero() }

// Retrying reports whether the last full sync failed.
func (s *Schedule) Retrying() bool { return !s.retryAt.IsZero() }

// RetryAt returns the time at which the failed sync is retried; zero if there is none.
func (s *Schedule) RetryAt() time.Time { return s.retryAt }

// ReadDue reports whether a full read is due.
func (s *Schedule) ReadDue(now time.Time) bool {
	return !s.reading && (!now.Before(s.auditAt) || s.Retrying() && !now.Before(s.retryAt))
}

// Read records the start of a full read.
func (s *Schedule) Read(now time.Time) {
	s.lastRead, s.reading, s.failed, s.next = now, true, false, time.Time{}
}

// Reading is the age of the running full read, until its result is compared; 0 if none runs.
func (s *Schedule) Reading(now time.Time) time.Duration {
	if !s.reading {
		return 0
	}
	return now.Sub(s.lastRead)
}

// Outcome is the result of a sync.
type Outcome struct {
	Started, Ended time.Time
	// Full is true if the sync read the whole kernel or should have.
	Full, Failed bool
	// Calm is true if the audit found nothing and quick checks would find most later changes. Took is how long the read took.
	Calm bool
	Took time.Duration
}

// distance is the time until the next audit.
func (s *Schedule) distance(o Outcome) time.Duration {
	if !o.Calm || o.Failed {
		return s.Audit
	}
	return max(s.Audit, min(share*o.Took, longest))
}

// Finish schedules the next audit and the retry.
func (s *Schedule) Finish(o Outcome) {
	if o.Full || !s.Started() { // the first sync may fail before it reads the kernel
		s.auditAt = o.Started.Add(s.distance(o))
		if !s.next.IsZero() && s.next.Before(s.auditAt) {
			s.auditAt = s.next
		}
		s.next = time.Time{}
	}
	unread := s.failed // no read since the failure
	s.reading, s.failed = s.reading && !o.Full, s.reading && !o.Full && (s.failed || o.Failed)
	switch {
	case o.Failed && (o.Full || !s.retryAt.After(o.Started)): // a sync that is not full failed to read the node's addresses
		s.backoff = min(max(2*s.backoff, minBackoff), s.Audit)
		s.retryAt = o.Ended.Add(s.backoff)
	case o.Full && !unread:
		s.retryAt, s.backoff = time.Time{}, 0
	}
	// A failure while a retry is pending does not postpone the retry: in a busy cluster that could be forever.
}

// AuditNow requests an immediate audit.
func (s *Schedule) AuditNow(now time.Time) { s.auditAt, s.next = now, now }

// AuditSoon moves the next audit forward, but not closer to the last full read than a second or the given distance.
func (s *Schedule) AuditSoon(distance time.Duration) {
	soon := s.lastRead.Add(max(minBetweenReads, distance))
	if s.reading && (s.next.IsZero() || soon.Before(s.next)) {
		s.next = soon
	}
	if soon.Before(s.auditAt) {
		s.auditAt = soon
	}
}

// RetrySoon moves the pending retry forward because a change waits for it, but not to within a second of the last full read.
func (s *Schedule) RetrySoon() {
	if soon := s.lastRead.Add(minBetweenReads); soon.Before(s.retryAt) {
		s.retryAt = soon
	}
}

// RetryStep is when a failed step is retried.
func RetryStep(now time.Time) time.Time { return now.Add(minBackoff) }

// NextSync is when the next sync starts: as soon as possible if one is requested, otherwise at the earliest deadline; zero if there is none. Zero
// deadlines do not count.
func (s *Schedule) NextSync(now time.Time, deadlines ...time.Time) time.Time {
	at := now
	if !s.requested {
		at = Earliest(deadlines...)
	}
	if at.IsZero() || at.After(s.notBefore) {
		return at
	}
	return s.notBefore
}

// NextWake is when the agent must wake up without a change: the next audit or retry, or the earliest other deadline; zero if there is none.
// Zero deadlines do not count. While a read runs, its result wakes the agent.
func (s *Schedule) NextWake(deadlines ...time.Time) time.Time {
	if !s.reading {
		deadlines = append(deadlines, s.auditAt, s.retryAt)
	}
	return Earliest(deadlines...)
}

// Earliest returns the first of some deadlines; zero means never.
func Earliest(times ...time.Time) (first time.Time) {
	for _, at := range times {
		if !at.IsZero() && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first
}
