package agent

import (
	"cmp"
	"context"
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/contest"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// NewLeftoverCleanup plans the removal of the rules and sets that kube-proxy has left behind. The agent may be
// running at the same time, because none of these objects belong to it. Virtual servers and addresses on kube-ipvs0
// stay, because Services or other programs may use them.
func NewLeftoverCleanup(ctx context.Context, cfg compile.Config, k Kernel) (*Cleanup, error) {
	have, err := k.Read(ctx)
	if err == nil {
		err = have.RulesErr.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("read the kernel's state: %w", err)
	}
	left, err := k.FindLeftovers(ctx)
	if err != nil {
		return nil, err
	}
	nothing := diff.NewTarget(compile.NewCluster(cfg).Want())
	foreign := diff.Look(nothing, have, diff.Options{}).Leftovers
	c := &Cleanup{Foreign: foreign.Addresses, ForeignServers: foreign.Servers, Kept: left.Kept, steps: aloneSteps(cfg, k, have)}
	for _, f := range inet.Families {
		c.KubeProxyRules = cmp.Or(c.KubeProxyRules, contest.ChainOfAnyKubeProxy(have.Rules[f]))
	}
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
