package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// plan compares, by reading the whole kernel where that is due, else by what we know of it.
func (a *Agent) plan(ctx context.Context, now time.Time, touched *want.Touched, report *Report) (diff.Plan, error) {
	a.hurry(touched)
	if a.due(now) {
		report.Full = true
		a.lastRead = now
		return a.planFull(ctx, now, touched, report)
	}
	return a.planTouched(ctx, now, touched)
}

// planFull reads the whole kernel and compares everything.
func (a *Agent) planFull(ctx context.Context, now time.Time, touched *want.Touched, report *Report) (diff.Plan, error) {
	opt := a.options(now)
	opt.Fresh = func(kernel.ServerKey) bool { return true }
	fresh, err := a.read(ctx, opt)
	if err != nil {
		return diff.Plan{}, err
	}
	undisturbed := a.have != nil && a.retryAt.IsZero() && len(report.Compiled) == 0 && !touched.Rules
	a.have, a.doubtful = fresh, doubtful{}
	a.forgetContested()

	w := a.cluster.Want()
	freed := diff.Freed(w, fresh)
	for _, key := range freed {
		w.SetForeign(key, false, touched)
	}
	lingered := slices.Collect(w.Lingering)
	w.SetLingering(diff.Lingering(w, fresh, maps.Keys(fresh.Servers), opt), touched)
	undisturbed = undisturbed && !slices.ContainsFunc(lingered, func(key kernel.ServerKey) bool { return !w.Lingers(key) })
	for _, key := range diff.Foreign(w, fresh, diff.AllKeys(w), opt) {
		w.SetForeign(key, true, touched)
	}
	report.Leftovers = diff.FindLeftovers(w, fresh, opt)
	report.IPv6Off = diff.IPv6Missing(w, fresh)
	a.ramps.updateAll(now, w, fresh)
	plan := diff.Full(w, fresh, opt)
	a.ours = diff.Ours(w, fresh, opt)
	a.failures = nil
	if undisturbed && len(freed) == 0 {
		report.Drift = diff.Repairs(plan) - a.ramps.steps(plan)
	}
	return plan, nil
}

// read reads the whole kernel, and once more what should be there and was not seen, or was not seen in full.
func (a *Agent) read(ctx context.Context, opt diff.Options) (*kernel.State, error) {
	fresh, err := a.kernel.Read(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the kernel's state: %w", err)
	}
	unclear := append(diff.Missing(a.cluster.Want(), fresh, opt), diff.Limited(a.cluster.Want(), fresh)...)
	if len(unclear) == 0 {
		return fresh, nil
	}
	found, err := a.kernel.Lookup(ctx, unclear)
	if err != nil {
		return nil, fmt.Errorf("look up virtual servers that were not seen, or not in full: %w", err)
	}
	maps.Copy(fresh.Servers, found)
	return fresh, nil
}

// planTouched compares what has changed with what we remember of the kernel.
func (a *Agent) planTouched(ctx context.Context, now time.Time, touched *want.Touched) (diff.Plan, error) {
	opt := a.options(now)
	if a.drains.due(now) {
		looked, err := a.lookAtDrains(ctx, touched)
		if err != nil {
			return diff.Plan{}, err
		}
		opt.Fresh = looked
	}
	a.linger(touched, opt)
	if len(a.doubtful) > 0 {
		a.doubtful.remove(touched)
	}
	if err := a.lookBeforeClaiming(ctx, touched, opt); err != nil {
		return diff.Plan{}, err
	}
	a.riseWeights(now, touched)
	return diff.Touched(a.cluster.Want(), a.have, touched, opt), nil
}

// linger says anew which virtual servers linger, of those that did and those that may have been replaced just now.
func (a *Agent) linger(touched *want.Touched, opt diff.Options) {
	w := a.cluster.Want()
	keys := slices.AppendSeq(slices.Collect(maps.Keys(touched.Servers)), w.Lingering)
	w.SetLingering(diff.Lingering(w, a.have, slices.Values(keys), opt), touched)
}

// riseWeights adds the virtual servers with a rising weight to what is compared, when a step is due.
func (a *Agent) riseWeights(now time.Time, touched *want.Touched) {
	if !a.ramps.due(now) {
		a.ramps.update(now, maps.Keys(touched.Servers), a.cluster.Want(), a.have)
		return
	}
	for key := range a.ramps.began {
		if !a.doubtful.has(key.Addr.Addr()) {
			touched.Servers[key] = struct{}{}
		}
	}
	a.ramps.update(now, maps.Keys(touched.Servers), a.cluster.Want(), a.have)
}

// lookAtDrains reads the connection counts of the virtual servers that have a draining destination, and says which these are.
func (a *Agent) lookAtDrains(ctx context.Context, touched *want.Touched) (func(kernel.ServerKey) bool, error) {
	keys := a.drains.servers()
	if _, err := a.lookup(ctx, keys); err != nil {
		return nil, fmt.Errorf("look at draining destinations: %w", err)
	}
	looked := map[kernel.ServerKey]bool{}
	for _, key := range keys {
		touched.Servers[key] = struct{}{}
		looked[key] = true
	}
	return func(key kernel.ServerKey) bool { return looked[key] }, nil
}

// lookup reads virtual servers anew.
func (a *Agent) lookup(ctx context.Context, keys []kernel.ServerKey) (map[kernel.ServerKey]kernel.ObservedServer, error) {
	found, err := a.kernel.Lookup(ctx, keys)
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		if server, stands := found[key]; stands {
			a.have.Servers[key] = server
		} else {
			delete(a.have.Servers, key)
		}
	}
	return found, nil
}

func (a *Agent) options(now time.Time) diff.Options {
	return diff.Options{
		Expired: func(key kernel.ServerKey, d kernel.Destination) bool {
			return a.drains.expired(now, a.cfg.DrainTimeout, key, d)
		},
		Weight:     func(server *want.Server, d kernel.Destination) uint32 { return a.ramps.weight(now, server, d) },
		Unsettable: func(s kernel.SysctlSetting) bool { return a.unsettable[s] },
		Known:      has(a.ours),
		Contested:  has(a.contested),
	}
}

func has(keys map[kernel.ServerKey]struct{}) func(kernel.ServerKey) bool {
	return func(key kernel.ServerKey) bool {
		_, ok := keys[key]
		return ok
	}
}
