package agent

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/schedule"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

const (
	// lastKnownAfter is the time after which the agent serves the last known state if the source has not synced.
	lastKnownAfter = 10 * time.Second
	lastKnownRetry = 5 * time.Second
)

// lastKnown serves the last known state. It only adds objects, and only to a kernel without kube-ipvs objects (I4,
// I9).
type lastKnown struct {
	cfg    *Config
	kernel Kernel
	state  *LastKnown // nil if there is none, or once the source has synced
	due    time.Time
	served bool
	// begun is true once the first object has been added. Objects found later are the agent's own.
	begun bool
	added func()
	moved bool
}

func (k *lastKnown) serve(ctx context.Context) time.Time {
	now := time.Now()
	if k.state == nil || k.served && !k.moved {
		return time.Time{}
	}
	if now.Before(k.due) {
		return k.due
	}
	k.moved = false
	err := k.add(ctx, now)
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

// add uses temporary steps and discards what they learn. The first sync then starts from the kernel's state alone, as
// it does after a restart (I9).
func (k *lastKnown) add(ctx context.Context, now time.Time) error {
	if has, err := k.kernel.HasDevice(ctx); err != nil || has && !k.begun {
		return errors.Join(err, onlyIf(has, ErrKernelNewer))
	}
	changes := k.state.Changes
	changes.APIServer = k.contacts(changes.APIServer)
	first := newSteps(&Config{Compile: k.cfg.Compile}, nil, k.kernel, &schedule.Schedule{}, newBackground())
	s, plan, err := first.once(ctx, now, changes)
	if err != nil {
		return err
	}
	changesMore := plan.Has(func(op kernel.Op) bool { return op.Verb == kernel.Delete || op.Verb == kernel.Update })
	if changesMore || len(first.planner.known.State().Servers) > 0 && !k.begun {
		return ErrKernelNewer
	}
	k.begun = true
	k.added()
	first.writer.apply(ctx, s, first.planner, plan)
	return errors.Join(s.report.firstError(), s.report.firstUnfinished())
}

// contacts adds the API server's current addresses to the earlier ones, because it may have moved.
func (k *lastKnown) contacts(earlier []netip.AddrPort) []netip.AddrPort {
	if k.cfg.Contacts == nil {
		return earlier
	}
	return slices.Concat(earlier, k.cfg.Contacts())
}

func onlyIf(condition bool, err error) error {
	if condition {
		return err
	}
	return nil
}
