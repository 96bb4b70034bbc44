package agent

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

const (
	// lastKnownAfter is how long the source may take before the last known state is served.
	lastKnownAfter = 10 * time.Second
	// lastKnownRetry is the delay after a failure.
	lastKnownRetry = 5 * time.Second
)

// LastKnown is the state of the cluster from an earlier run. A node that boots without a source serves it.
type LastKnown struct {
	Changes model.Changes
	// Served gets the result of every attempt: ErrKernelNewer if the state is not used at all.
	Served func(error)
}

// ErrKernelNewer means that the kernel holds a state, which is newer than any file.
var ErrKernelNewer = errors.New("the kernel already has virtual servers, kube-ipvs0, or other objects that the snapshot would change")

// lastKnown serves a LastKnown. It only adds, and only where the kernel has nothing (I4, I9).
type lastKnown struct {
	state  *LastKnown // nil if there is none, and after the source has synced
	due    time.Time
	served bool
	// begun is true once anything was added to a kernel that had nothing. What is there since then is the agent's own.
	begun bool
	// moved is true if the node's addresses may have changed since.
	moved bool
}

func newLastKnown(state *LastKnown) lastKnown {
	return lastKnown{state: state, due: time.Now().Add(lastKnownAfter)}
}

// serveLastKnown serves the last known state if that is due, and returns when it is due next; zero for never.
func (a *Agent) serveLastKnown(ctx context.Context) time.Time {
	k := &a.lastKnown
	now := time.Now()
	if k.state == nil || k.served && !k.moved {
		return time.Time{}
	}
	if now.Before(k.due) {
		return k.due
	}
	k.moved = false
	err := a.addLastKnown(ctx, now)
	if ctx.Err() != nil {
		return time.Time{}
	}
	k.state.Served(err)
	switch {
	case err == nil:
		k.served = true
	case errors.Is(err, ErrKernelNewer) && !k.begun:
		k.state = nil
	default:
		k.moved, k.due = true, now.Add(lastKnownRetry)
		return k.due
	}
	return time.Time{}
}

// addLastKnown compares the last known state with the kernel and adds what is missing. An agent of its own does it: what that learns is
// forgotten, and the first sync starts from the kernel alone, as after a restart (I9).
func (a *Agent) addLastKnown(ctx context.Context, now time.Time) error {
	if has, err := a.kernel.HasDevice(ctx); err != nil || has && !a.lastKnown.begun {
		return errors.Join(err, onlyIf(has, ErrKernelNewer))
	}
	s := New(Config{Compile: a.cfg.Compile}, nil, a.kernel, zap.NewNop()).newSync(now)
	changes := a.lastKnown.state.Changes
	changes.APIServer = a.contacts(changes.APIServer)
	if err := s.gather(ctx, changes); err != nil {
		return err
	}
	s.compile()
	plan, err := s.plan(ctx)
	if err = errors.Join(err, s.report.rulesErr.Err()); err != nil {
		return err
	}
	changesMore := slices.ContainsFunc(plan.Ops(), func(op kernel.Op) bool { return op.Verb == kernel.Delete || op.Verb == kernel.Update })
	if changesMore || len(s.known.State().Servers) > 0 && !a.lastKnown.begun {
		return ErrKernelNewer
	}
	a.lastKnown.begun = true
	a.wayOut.free = nil
	s.apply(ctx, plan)
	return errors.Join(s.report.firstError(), s.report.firstUnfinished())
}

// contacts adds the addresses at which the API server is tried now to those that were known earlier: it may have moved since.
func (a *Agent) contacts(earlier []netip.AddrPort) []netip.AddrPort {
	if a.cfg.Contacts == nil {
		return earlier
	}
	return slices.Concat(earlier, a.cfg.Contacts())
}

func onlyIf(condition bool, err error) error {
	if condition {
		return err
	}
	return nil
}
