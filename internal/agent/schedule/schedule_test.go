package schedule

import (
	"testing"
	"time"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func after(d time.Duration) time.Time { return start.Add(d) }

func newSchedule() *Schedule {
	return &Schedule{Intervals: Intervals{Audit: time.Minute, Min: time.Second}}
}

func (s *Schedule) finish(at time.Time, full, failed bool) {
	s.Finish(Outcome{Started: at, Ended: at, Full: full, Failed: failed})
}

func TestFirstSyncReads(t *testing.T) {
	s := newSchedule()
	s.AuditNow(start) // after a reload
	if !s.ReadDue(start) || s.Started() {
		t.Errorf("a read is due: %t, started: %t", s.ReadDue(start), s.Started())
	}
	s.Read(start)
	s.finish(start, true, false)
	if s.ReadDue(after(time.Minute-1)) || !s.ReadDue(after(time.Minute)) {
		t.Error("the next read must be due after the audit interval")
	}
}

func TestLongAuditsAreRare(t *testing.T) {
	for _, c := range []struct {
		took         time.Duration
		calm, failed bool
		want         time.Duration
	}{
		{10 * time.Millisecond, true, false, time.Minute},
		{50 * time.Millisecond, true, false, 100 * time.Second},
		{10 * time.Second, true, false, longest},
		{10 * time.Second, false, false, time.Minute}, // the audit found drift, or quick checks are off
		{10 * time.Second, true, true, time.Minute},
	} {
		s := newSchedule()
		s.Finish(Outcome{Started: start, Ended: start, Full: true, Failed: c.failed, Calm: c.calm, Took: c.took})
		if got := s.auditAt.Sub(start); got != c.want || s.Distance() != c.want {
			t.Errorf("%+v: the next audit is after %s, but is reported as %s", c, got, s.Distance())
		}
	}
	s := newSchedule()
	s.Audit = time.Hour
	s.Finish(Outcome{Started: start, Ended: start, Full: true, Calm: true, Took: time.Second})
	if got := s.auditAt.Sub(start); got != time.Hour {
		t.Errorf("the next audit is after %s, earlier than configured", got)
	}
}

func TestBackoffDoublesUpToTheAuditInterval(t *testing.T) {
	s := newSchedule()
	now := start
	for _, wait := range []time.Duration{100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 51200, 60000, 60000} {
		s.finish(now, true, true)
		if got := s.RetryAt().Sub(now); got != wait*time.Millisecond {
			t.Fatalf("the retry is after %v, want %vms", got, wait)
		}
		now = s.RetryAt()
	}
	s.finish(now, true, false)
	if s.Retrying() {
		t.Error("a successful full sync must end the retries")
	}
	s.finish(now, true, true)
	if got := s.RetryAt().Sub(now); got != minBackoff {
		t.Errorf("the first retry comes after %v", got)
	}
}

func TestFailuresWhileARetryIsPendingDoNotPostponeIt(t *testing.T) {
	s := newSchedule()
	s.finish(start, true, true)
	at := s.RetryAt()
	s.finish(after(50*time.Millisecond), false, true)
	if s.RetryAt() != at {
		t.Errorf("the retry is at %v, want %v", s.RetryAt(), at)
	}
	s.finish(after(60*time.Millisecond), false, false)
	if !s.Retrying() {
		t.Error("the retry must stay, because an incremental sync does not check earlier failures")
	}
}

func TestEventsDoNotReadMoreOftenThanOnceASecond(t *testing.T) {
	s := newSchedule()
	s.Read(start)
	s.finish(start, true, true)
	s.finish(s.RetryAt(), true, true)
	s.finish(s.RetryAt(), true, true)
	s.finish(s.RetryAt(), true, true)
	s.Read(after(700 * time.Millisecond))
	s.AuditSoon(0)
	if s.ReadDue(after(1400 * time.Millisecond)) {
		t.Error("a read is due only 0.7 s after the last one")
	}
	s.finish(after(1500*time.Millisecond), true, true)
	s.RetrySoon()
	if at := s.RetryAt(); at != after(1700*time.Millisecond) {
		t.Errorf("the retry moved to %v, want one second after the last read", at.Sub(start))
	}
}

func TestWaitBetweenSyncs(t *testing.T) {
	s := newSchedule()
	if s.Wait(start) > 0 {
		t.Error("the first sync must not wait")
	}
	s.Begin(start)
	if w := s.Wait(after(300 * time.Millisecond)); w != 700*time.Millisecond {
		t.Errorf("wait %v", w)
	}
}

func TestStormsNeedFewSyncs(t *testing.T) {
	s, syncs := &Schedule{Intervals: Intervals{Audit: time.Minute, Spacing: 10 * time.Millisecond}}, []time.Duration(nil)
	for ms := range 1000 { // a change each millisecond
		now := after(time.Duration(ms) * time.Millisecond)
		s.Request()
		if !s.NextSync(now).After(now) {
			s.Begin(now)
			syncs = append(syncs, now.Sub(start))
		}
	}
	if n := len(syncs); n > burst+100 || n < 100 {
		t.Errorf("%d syncs for 1,000 changes within a second", n)
	}
	if last := syncs[burst-1]; last != (burst-1)*time.Millisecond {
		t.Errorf("the first %d syncs took until %s", burst, last)
	}
	s.Request()
	for i, now := range []time.Time{after(2 * time.Second), after(2 * time.Second)} {
		if at := s.NextSync(now); at.After(now) {
			t.Errorf("after a second without changes, change %d waits %s", i, at.Sub(now))
		}
		s.Begin(now)
		s.Request()
	}
}

func TestNextWakeIsTheEarliestDeadline(t *testing.T) {
	s := newSchedule()
	s.finish(start, true, false)
	if at := s.NextWake(time.Time{}, after(2*time.Minute)); at != after(time.Minute) {
		t.Errorf("got next wake %v, want the audit", at)
	}
	if at := s.NextWake(after(3*time.Second), after(2*time.Second)); at != after(2*time.Second) {
		t.Errorf("got next wake %v, want the earliest deadline", at)
	}
}

func TestReadsOutsideTheLoop(t *testing.T) {
	for name, test := range map[string]struct {
		meanwhile func(*Schedule)
		next      time.Duration
	}{
		"nothing":  {func(*Schedule) {}, time.Minute + time.Second},
		"an event": {func(s *Schedule) { s.AuditSoon(0) }, time.Second},
		"a reload": {func(s *Schedule) { s.AuditNow(after(500 * time.Millisecond)) }, 500 * time.Millisecond},
		"a failure": {
			func(s *Schedule) { s.finish(after(950*time.Millisecond), false, true) }, 950*time.Millisecond + minBackoff,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSchedule()
			s.Read(start)
			test.meanwhile(s)
			if s.ReadDue(after(time.Hour)) || !s.NextWake().IsZero() {
				t.Error("another read is due while one runs")
			}
			s.finish(after(time.Second), true, false)
			if at := s.NextWake(); !at.Equal(after(test.next)) {
				t.Errorf("the next read is due after %v, want %v", at.Sub(start), test.next)
			}
		})
	}
}
