package main

import (
	"context"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
)

// findElsewhere looks for rules of ours in the variant of iptables that this node does not use (any more).
type findElsewhere func(context.Context) (*iptables.Leftovers, error)

// moveOut returns observe with one task more: once all our rules stand, those of an earlier start go that are in the other
// variant of iptables. It runs where reports are made, in the goroutine that writes to the kernel.
func moveOut(ctx context.Context, observe func(agent.Report), find findElsewhere, log *zap.Logger) func(agent.Report) {
	moved := false
	return func(r agent.Report) {
		observe(r)
		if !moved && rulesStand(r) {
			moved = true
			removeElsewhere(ctx, find, log)
		}
	}
}

// rulesStand says whether the pass found or made our rules complete, whatever else may have failed.
func rulesStand(r agent.Report) bool {
	for _, result := range r.Results {
		if result.Op.KindOf() == kernel.KindRules && (result.Err != nil || result.Skipped) {
			return false
		}
	}
	// Without results, an error may mean that the kernel could not be read.
	return r.Full && (r.Err == nil || len(r.Results) > 0)
}

func removeElsewhere(ctx context.Context, find findElsewhere, log *zap.Logger) {
	old, err := find(ctx)
	switch {
	case ctx.Err() != nil:
		return // the next start looks again
	case err != nil:
		log.Warn("cannot tell whether an earlier start left rules in the other variant of iptables", zap.Error(err))
		return
	case old == nil:
		return
	}
	if err := old.Remove(ctx); err != nil {
		log.Warn("an earlier start left rules in the variant of iptables that this node used then; the next start tries again to remove them",
			zap.Stringer("rules", old), zap.Error(err))
		return
	}
	log.Info("removed what an earlier start left in the variant of iptables that this node used then", zap.Stringer("rules", old))
}
