//go:build linux

package daemon

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// attempts records the attempts to remove the taint, and the Problems by field.
type attempts struct {
	sync.Mutex
	times    []time.Time
	failing  int
	problems map[string]model.Problem
}

func (a *attempts) remove(context.Context) (bool, error) {
	a.Lock()
	defer a.Unlock()
	if a.times = append(a.times, time.Now()); len(a.times) <= a.failing {
		return false, errors.New("forbidden")
	}
	return true, nil
}

func (a *attempts) SetProblem(p model.Problem) {
	a.Lock()
	defer a.Unlock()
	a.problems[p.Field] = p
}

func (a *attempts) ClearProblem(field string) {
	a.Lock()
	defer a.Unlock()
	delete(a.problems, field)
}

// after waits, and then returns the number of attempts and the Problem.
func (a *attempts) after(wait time.Duration) (int, model.Problem) {
	time.Sleep(wait)
	synctest.Wait()
	a.Lock()
	defer a.Unlock()
	return len(a.times), a.problems["startup taint"]
}

// The agent removes the taint only after the first complete sync. If an attempt fails, it reports a Problem and tries again.
func TestStartupTaintIsRemovedAfterTheFirstSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &attempts{failing: 8, problems: map[string]model.Problem{}}
		synced := newSignal()
		go (&startupTaint{problems: a, log: zap.NewNop(), remove: a.remove}).run(t.Context(), synced)
		if n, _ := a.after(time.Hour); n > 0 {
			t.Fatalf("%d attempts before the first sync", n)
		}
		synced.send()
		if _, p := a.after(time.Minute); p.Reason != "forbidden" || p.Remedy == "" {
			t.Errorf("problem: %v", p)
		}
		if n, p := a.after(10 * time.Minute); n != a.failing+1 || p.Field != "" {
			t.Errorf("%d attempts, want %d; problem: %v", n, a.failing+1, p)
		}
		if n, _ := a.after(taintCheck); n != a.failing+2 {
			t.Errorf("%d attempts, want %d: the taint is back if the Node object was created again", n, a.failing+2)
		}
		for i, at := range a.times[1 : a.failing+1] {
			if wait := at.Sub(a.times[i]); wait > maxTaintRetry {
				t.Errorf("attempt %d came %v after the previous one", i+2, wait)
			}
		}
	})
}

// By default, the agent does not try to remove the taint.
func TestStartupTaintStaysByDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		synced := newSignal()
		synced.send()
		(&startupTaint{}).run(t.Context(), synced)
	})
}
