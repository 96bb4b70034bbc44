package agent

import (
	"context"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/contest"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// NewLeftoverCleanup plans the removal of the rules and sets that kube-proxy has left behind. The agent may be
// running at the same time, because none of these objects belong to it. Virtual servers and addresses on kube-ipvs0
// stay, because Services or other programs may use them.
func NewLeftoverCleanup(ctx context.Context, cfg compile.Config, k Kernel) (*Cleanup, error) {
	c, _, err := beginCleanup(ctx, cfg, k, contest.ChainOfAnyKubeProxy)
	if err != nil {
		return nil, err
	}
	left, err := k.FindLeftovers(ctx)
	if err != nil {
		return nil, err
	}
	c.Kept = left.Kept
	var rules, tables, sets []kernel.Op
	for _, object := range left.Objects {
		op := kernel.Op{Verb: kernel.Delete, Object: object}
		switch object.Place {
		case kernel.OldSets:
			sets = append(sets, op)
		case kernel.RulesNFTables:
			tables = append(tables, op)
		default:
			rules = append(rules, op)
		}
	}
	for _, phase := range []diff.Phase{{Name: "rules of kube-proxy", Ops: rules}, {Name: "tables of kube-proxy", Ops: tables}, {Name: "sets of kube-proxy", Ops: sets}} {
		if len(phase.Ops) > 0 { // the kernel keeps a set while a rule uses it, so sets are last
			c.Plan.Phases = append(c.Plan.Phases, phase)
		}
	}
	return c, nil
}
