package live

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// slowRules are programs that take this long, and then fail or succeed.
type slowRules struct {
	mu    sync.Mutex
	takes time.Duration
	fails error
}

// become changes what later calls do.
func (s *slowRules) become(takes time.Duration, fails error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.takes, s.fails = takes, fails
}

func (s *slowRules) call() error {
	s.mu.Lock()
	takes, fails := s.takes, s.fails
	s.mu.Unlock()
	time.Sleep(takes)
	return fails
}

func (s *slowRules) Read(context.Context) (map[inet.Family]kernel.RulesView, error) {
	if err := s.call(); err != nil {
		return nil, err
	}
	return map[inet.Family]kernel.RulesView{inet.IPv4: {}}, nil
}

func (s *slowRules) Apply(_ context.Context, ops []kernel.Op) []error {
	errs := make([]error, len(ops))
	for i := range errs {
		errs[i] = s.call()
	}
	return errs
}

// waiting is an impatient reader of slow rules on a virtual clock.
type waiting struct {
	*patient
	t    *testing.T
	slow *slowRules
}

func impatient(t *testing.T, check func(waiting)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		slow := &slowRules{}
		p, err := newPatient(slow)
		if err != nil {
			t.Fatal(err)
		}
		p.limitWaits()
		check(waiting{p, t, slow})
		time.Sleep(time.Hour) // running calls end
		p.close()
	})
}

// read returns how long a read took, and why it had no result.
func (w waiting) read() (took time.Duration, stuck kernel.StuckError) {
	w.t.Helper()
	began := time.Now()
	found, err := w.Read(w.t.Context())
	if err == nil && found == nil || err != nil && !errors.As(err, &stuck) {
		w.t.Errorf("found %v, %v", found, err)
	}
	return time.Since(began), stuck
}

// succeeds reads in this time.
func (w waiting) succeeds(takes time.Duration) {
	w.t.Helper()
	w.slow.become(takes, nil)
	if took, stuck := w.read(); stuck.Part != "" || took != takes {
		w.t.Errorf("a read of %s: after %s %v", takes, took, stuck)
	}
}

// A slow node's calls are not stuck: the limit follows what calls take there.
func TestPatienceFollowsTheNode(t *testing.T) {
	impatient(t, func(w waiting) {
		for _, takes := range []time.Duration{time.Millisecond, 9 * time.Second, 25 * time.Second, 29 * time.Second} {
			w.succeeds(takes)
		}
		for range remembered { // it is a fast node again
			w.succeeds(time.Second)
		}
		w.slow.become(14*time.Second, nil)
		if took, stuck := w.read(); stuck.Part != "iptables" || took != 13*time.Second {
			w.t.Errorf("after %s: %v", took, stuck)
		}
	})
}

// A program that hangs is killed again and again. That is no answer: it has been stuck since the first call.
func TestStuckUntilASuccess(t *testing.T) {
	impatient(t, func(w waiting) {
		w.succeeds(time.Second)
		began := time.Now()
		w.slow.become(30*time.Second, context.DeadlineExceeded)
		for range 10 {
			if took, stuck := w.read(); !stuck.Since.Equal(began) || took > longestWait {
				w.t.Errorf("after %s: %v, want stuck since %s", took, stuck, began)
			}
			time.Sleep(20 * time.Second)
		}
		time.Sleep(time.Minute)
		w.succeeds(shortWait / 2)
		if !w.troubleSince.IsZero() {
			w.t.Error("still stuck after a success")
		}
	})
}

// A program that fails is no better than one that hangs.
func TestFailingPrograms(t *testing.T) {
	impatient(t, func(w waiting) {
		began := time.Now()
		failure := errors.New("exit status 1")
		w.slow.become(0, failure)
		for range 3 {
			if _, stuck := w.read(); !stuck.Since.Equal(began) || !errors.Is(stuck, failure) {
				w.t.Errorf("got %v", stuck)
			}
			time.Sleep(time.Minute)
		}
		w.succeeds(shortWait / 2)
	})
}

// The result of a read that took too long is not lost.
func TestLateResult(t *testing.T) {
	impatient(t, func(w waiting) {
		ended := make(chan time.Time, 1)
		ctx, stop := context.WithCancel(w.t.Context())
		defer stop()
		go w.watch(ctx, func() { ended <- time.Now() })
		began := time.Now()
		w.slow.become(40*time.Second, nil)
		if took, stuck := w.read(); took != 10*time.Second || stuck.Part == "" {
			w.t.Errorf("after %s: %v", took, stuck)
		}
		if took, stuck := w.read(); took != shortWait || stuck.Part == "" { // the other call still runs
			w.t.Errorf("after %s: %v", took, stuck)
		}
		if at := <-ended; at.Sub(began) != 40*time.Second {
			w.t.Errorf("told after %s", at.Sub(began))
		}
		if took, stuck := w.read(); took != 0 || stuck.Part != "" {
			w.t.Errorf("the result was lost: after %s: %v", took, stuck)
		}
	})
}

// One call waits for another that is slow, but not stuck.
func TestCallsWaitForEachOther(t *testing.T) {
	impatient(t, func(w waiting) {
		w.succeeds(8 * time.Second)
		go w.Apply(w.t.Context(), make([]kernel.Op, 2))
		synctest.Wait()
		if took, stuck := w.read(); took != 24*time.Second || stuck.Part != "" {
			w.t.Errorf("after %s: %v", took, stuck)
		}
	})
}

// A write that fails says why; its rules are wrong, not iptables. One that hangs is stuck.
func TestFailingWrite(t *testing.T) {
	impatient(t, func(w waiting) {
		failure := errors.New("no such module")
		w.slow.become(0, failure)
		op := []kernel.Op{{Verb: kernel.Ensure, Object: kernel.Ruleset{Family: inet.IPv4}}}
		if errs := w.Apply(w.t.Context(), op); len(errs) != 1 || !errors.Is(errs[0], failure) || !w.troubleSince.IsZero() {
			w.t.Errorf("got %v", errs)
		}
		w.slow.become(time.Minute, nil)
		if errs := w.Apply(w.t.Context(), op); len(errs) != 1 || !errors.As(errs[0], &kernel.StuckError{}) {
			w.t.Errorf("got %v", errs)
		}
	})
}

// A call that ends because the agent stops says nothing about iptables.
func TestStoppedCall(t *testing.T) {
	impatient(t, func(w waiting) {
		ctx, stop := context.WithCancel(w.t.Context())
		w.slow.become(time.Second, context.Canceled)
		time.AfterFunc(time.Millisecond, stop)
		if _, err := w.Read(ctx); errors.As(err, &kernel.StuckError{}) || !errors.Is(err, context.Canceled) {
			w.t.Errorf("got %v", err)
		}
	})
}

// A result is outdated after a write that began meanwhile, and after a while. Another program may have changed the rules since.
func TestOutdatedLateResults(t *testing.T) {
	for name, then := range map[string]func(waiting){
		"a write": func(w waiting) {
			w.slow.become(0, nil)
			if errs := w.Apply(w.t.Context(), make([]kernel.Op, 1)); errs[0] != nil {
				w.t.Error(errs)
			}
			time.Sleep(time.Second)
		},
		"an hour": func(waiting) { time.Sleep(time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			impatient(t, func(w waiting) {
				w.slow.become(10500*time.Millisecond, nil)
				if _, stuck := w.read(); stuck.Part == "" {
					w.t.Error("the read was not given up")
				}
				then(w)
				w.succeeds(shortWait / 2)
			})
		})
	}
}

// A caller that must stop does not wait, even for a program that cannot be killed.
func TestStopDuringACall(t *testing.T) {
	impatient(t, func(w waiting) {
		w.succeeds(9 * time.Second)
		for _, doing := range []func(context.Context) error{
			func(ctx context.Context) error { _, err := w.Read(ctx); return err },
			func(ctx context.Context) error { return w.Apply(ctx, make([]kernel.Op, 1))[0] },
		} {
			w.slow.become(time.Hour/4, nil)
			ctx, stop := context.WithCancel(w.t.Context())
			time.AfterFunc(time.Second, stop)
			began := time.Now()
			if err := doing(ctx); !errors.Is(err, context.Canceled) || time.Since(began) != time.Second {
				w.t.Errorf("after %s: %v", time.Since(began), err)
			}
		}
	})
}

// Writes that fail leave iptables stuck if it was: a success is what ends that.
func TestFailingWritesEndNoTrouble(t *testing.T) {
	impatient(t, func(w waiting) {
		w.slow.become(30*time.Second, context.DeadlineExceeded)
		_, _ = w.read()
		time.Sleep(time.Minute)
		w.slow.become(0, errors.New("no such module"))
		w.Apply(w.t.Context(), make([]kernel.Op, 1))
		if w.troubleSince.IsZero() {
			w.t.Error("a failure counts as a success")
		}
	})
}
