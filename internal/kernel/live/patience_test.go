package live

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
)

type slowRules struct {
	mu    sync.Mutex
	takes time.Duration
	fails error
}

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

func (s *slowRules) Read(_ context.Context, f inet.Family) (kernel.RulesView, error) {
	return kernel.RulesView{Chains: map[kernel.ChainID][]string{{Chain: f.String()}: nil}}, s.call()
}

func (s *slowRules) Apply(_ context.Context, ops []kernel.Op) []error {
	errs := make([]error, len(ops))
	for i := range errs {
		errs[i] = s.call()
	}
	return errs
}

type waiting struct {
	*patient
	t    *testing.T
	slow *slowRules
}

func impatient(t *testing.T, check func(waiting)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		slow := &slowRules{}
		p, err := newPatient(slow, inet.IPv4)
		if err != nil {
			t.Fatal(err)
		}
		p.limitWaits()
		check(waiting{p, t, slow})
		time.Sleep(time.Hour) // let running calls end
		p.close()
	})
}

func rulesOf(f inet.Family) kernel.Op {
	return kernel.Op{Verb: kernel.Ensure, Object: kernel.Ruleset{Family: f}}
}

func (w waiting) read() (took time.Duration, stuck kernel.StuckError) {
	w.t.Helper()
	began := time.Now()
	found, err := w.Read(w.t.Context())
	if err == nil && found.Chains == nil || err != nil && !errors.As(err, &stuck) {
		w.t.Errorf("found %v, %v", found, err)
	}
	return time.Since(began), stuck
}

func (w waiting) succeeds(takes time.Duration) {
	w.t.Helper()
	w.slow.become(takes, nil)
	if took, stuck := w.read(); stuck.Part != "" || took != takes {
		w.t.Errorf("a read that takes %s returned after %s: %v", takes, took, stuck)
	}
}

// Slow calls do not count as stuck on a slow node, because the limit adapts to their durations.
func TestPatienceFollowsTheNode(t *testing.T) {
	impatient(t, func(w waiting) {
		for _, takes := range []time.Duration{time.Millisecond, 4 * time.Second, 16 * time.Second, 29 * time.Second} {
			w.succeeds(takes)
		}
		for range remembered { // the node is fast again
			w.succeeds(time.Second)
		}
		w.slow.become(9*time.Second, nil)
		if took, stuck := w.read(); stuck.Part != "iptables" || took != 8*time.Second {
			w.t.Errorf("after %s: %v", took, stuck)
		}
	})
}

// A hung program is killed repeatedly. A kill does not count as a success, so the program counts as stuck since the first call.
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

// A failing program counts as stuck.
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

// If a read ends late, a later read returns its result.
func TestLateResult(t *testing.T) {
	impatient(t, func(w waiting) {
		ended := make(chan time.Time, 1)
		ctx, stop := context.WithCancel(w.t.Context())
		defer stop()
		go w.watch(ctx, func() { ended <- time.Now() })
		began := time.Now()
		w.slow.become(40*time.Second, nil)
		if took, stuck := w.read(); took != iptables.LockWait || stuck.Part == "" {
			w.t.Errorf("after %s: %v", took, stuck)
		}
		if took, stuck := w.read(); took != shortWait || stuck.Part == "" { // the other call is still running
			w.t.Errorf("after %s: %v", took, stuck)
		}
		if at := <-ended; at.Sub(began) != 40*time.Second {
			w.t.Errorf("the notification came after %s", at.Sub(began))
		}
		if took, stuck := w.read(); took != 0 || stuck.Part != "" {
			w.t.Errorf("the result was lost: after %s: %v", took, stuck)
		}
	})
}

// A call waits for another call that is slow, but not stuck.
func TestCallsWaitForEachOther(t *testing.T) {
	impatient(t, func(w waiting) {
		w.succeeds(4 * time.Second)
		go func() { _ = w.Apply(w.t.Context(), rulesOf(inet.IPv4)) }()
		synctest.Wait()
		if took, stuck := w.read(); took != 8*time.Second || stuck.Part != "" {
			w.t.Errorf("after %s: %v", took, stuck)
		}
	})
}

// A failed write returns its error, because the cause may be the rules. Only a write that hangs counts as stuck.
func TestFailingWrite(t *testing.T) {
	impatient(t, func(w waiting) {
		failure := errors.New("no such module")
		w.slow.become(0, failure)
		if err := w.Apply(w.t.Context(), rulesOf(inet.IPv4)); !errors.Is(err, failure) || !w.troubleSince.IsZero() {
			w.t.Errorf("got %v", err)
		}
		w.slow.become(time.Minute, nil)
		if err := w.Apply(w.t.Context(), rulesOf(inet.IPv4)); !errors.As(err, &kernel.StuckError{}) {
			w.t.Errorf("got %v", err)
		}
	})
}

// A call that ends because the agent stops does not count as a failure of iptables.
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

// A late result is outdated after a write. It also expires, because another program may have changed the rules.
func TestOutdatedLateResults(t *testing.T) {
	for name, then := range map[string]func(waiting){
		"a write": func(w waiting) {
			w.slow.become(0, nil)
			if err := w.Apply(w.t.Context(), rulesOf(inet.IPv4)); err != nil {
				w.t.Error(err)
			}
			time.Sleep(time.Second)
		},
		"an hour": func(waiting) { time.Sleep(time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			impatient(t, func(w waiting) {
				w.slow.become(iptables.LockWait+time.Second/2, nil)
				if _, stuck := w.read(); stuck.Part == "" {
					w.t.Error("the read did not exceed its time limit")
				}
				then(w)
				w.succeeds(shortWait / 2)
			})
		})
	}
}

// When the agent stops, a call returns immediately, even if its program cannot be killed.
func TestStopDuringACall(t *testing.T) {
	impatient(t, func(w waiting) {
		w.succeeds(4 * time.Second)
		for _, doing := range []func(context.Context) error{
			func(ctx context.Context) error { _, err := w.Read(ctx); return err },
			func(ctx context.Context) error { return w.Apply(ctx, rulesOf(inet.IPv4)) },
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

// iptables still counts as stuck after a failed write. Only a success ends that state.
func TestFailingWritesEndNoTrouble(t *testing.T) {
	impatient(t, func(w waiting) {
		w.slow.become(30*time.Second, context.DeadlineExceeded)
		_, _ = w.read()
		time.Sleep(time.Minute)
		w.slow.become(0, errors.New("no such module"))
		_ = w.Apply(w.t.Context(), rulesOf(inet.IPv4))
		if w.troubleSince.IsZero() {
			w.t.Error("a failure counts as a success")
		}
	})
}

// oneHangs simulates the programs of both families. One family's programs fail, or hang for an hour.
type oneHangs struct {
	family inet.Family
	fails  error
}

func (o oneHangs) call(f inet.Family) error {
	if f == o.family && o.fails == nil {
		time.Sleep(time.Hour)
	}
	if f == o.family {
		return o.fails
	}
	return nil
}

func (o oneHangs) Read(_ context.Context, f inet.Family) (kernel.RulesView, error) {
	return kernel.RulesView{}, o.call(f)
}

func (o oneHangs) Apply(_ context.Context, ops []kernel.Op) []error {
	return []error{o.call(ops[0].Object.(kernel.Ruleset).Family)}
}

// I16: while the programs of one family hang or fail, the rules of the other family can be read and written.
func TestFamiliesFailAlone(t *testing.T) {
	for _, broken := range inet.Families {
		for _, fails := range []error{nil, errors.New("exit status 1")} {
			t.Run(fmt.Sprint(broken, fails), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					all := byFamily{map[inet.Family]*patient{}}
					for _, f := range inet.Families {
						p, err := newPatient(oneHangs{broken, fails}, f)
						if err != nil {
							t.Fatal(err)
						}
						p.limitWaits()
						all.of[f] = p
						defer p.close()
					}
					for range 3 {
						views, errs := all.Read(t.Context())
						for _, f := range inet.Families {
							stuck := kernel.StuckError{}
							_, found := views[f]
							told := errors.As(errs[f], &stuck) && stuck.Part == kernel.Programs(f)
							failed := all.Apply(t.Context(), []kernel.Op{rulesOf(f)})[0] != nil
							if b := f == broken; found == b || told != b || failed != b {
								t.Errorf("%s: rules found: %t, error: %v, write failed: %t", f, found, errs[f], failed)
							}
						}
					}
					time.Sleep(time.Hour) // let running calls end
				})
			})
		}
	}
}
