package agent

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/contest"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Cleanup removes objects from a node's kernel: all kube-ipvs objects if no agent is running, otherwise kube-proxy's
// leftovers.
type Cleanup struct {
	Plan diff.Plan
	// KubeProxyRules names a chain that kube-proxy has written in ipvs mode since the agent last wrote it; empty if there is none.
	KubeProxyRules string
	// Foreign are other programs' addresses on kube-ipvs0. The device stays while they exist.
	Foreign []netip.Addr
	// ForeignServers are foreign virtual servers on addresses of kube-ipvs0. Kept describes which of kube-proxy's leftovers stay.
	ForeignServers []kernel.ServerKey
	Kept           []string
	steps          *steps
}

// NewCleanup reads the kernel and plans the removal.
func NewCleanup(ctx context.Context, cfg compile.Config, k Kernel) (*Cleanup, error) {
	c, have, err := beginCleanup(ctx, cfg, k, contest.ChainOfKubeProxy)
	if err != nil {
		return nil, err
	}
	old, err := k.FindOldRules(ctx)
	if err != nil {
		return nil, err
	}
	c.Plan = diff.Removal(c.steps.planner.target, have)
	if chains := slices.DeleteFunc(slices.Clone(old), holdsRecords); len(chains) > 0 { // their sets cannot be destroyed while the rules exist
		c.Plan.Phases = append([]diff.Phase{{Name: "old rules to remove", Ops: removalOf(chains)}}, c.Plan.Phases...)
	}
	if sets := slices.DeleteFunc(old, func(r kernel.OldRules) bool { return !holdsRecords(r) }); len(sets) > 0 { // last, like the ledger
		c.Plan.Phases = append(c.Plan.Phases, diff.Phase{Name: "old sets to remove", Ops: removalOf(sets)})
	}
	return c, nil
}

// beginCleanup reads the kernel, and returns a cleanup without a plan. chainOf returns the name of a chain that kube-proxy has written since the
// agent last wrote it.
func beginCleanup(ctx context.Context, cfg compile.Config, k Kernel, chainOf func(kernel.RulesView) string) (*Cleanup, *kernel.State, error) {
	have, err := k.Read(ctx)
	if err == nil {
		err = have.RulesErr.Err()
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the kernel's state: %w", err)
	}
	c := &Cleanup{steps: aloneSteps(cfg, k, have)}
	foreign := diff.AllLeftovers(c.steps.planner.target, have, diff.Options{})
	c.Foreign, c.ForeignServers = foreign.Addresses, foreign.Servers
	for _, f := range inet.Families {
		c.KubeProxyRules = cmp.Or(c.KubeProxyRules, chainOf(have.Rules[f]))
	}
	return c, have, nil
}

func holdsRecords(old kernel.OldRules) bool {
	return old.Variant == kernel.OldSets || old.Variant == kernel.RulesNFTables
}

// KeepServices removes virtual servers, their addresses and the device from the plan, so that kube-proxy can take them over. kube-proxy would
// not remove our routes, so they become addresses of the device.
func (c *Cleanup) KeepServices() {
	var moves []kernel.Op
	for op := range c.Plan.All {
		if a, is := op.Object.(kernel.BoundAddress); is && a.Binding != kernel.OnDevice {
			moves = append(moves, kernel.Op{Verb: kernel.Create, Object: kernel.BoundAddress{Addr: a.Addr, Moved: true}})
		}
	}
	c.Plan = c.Plan.Without(func(op kernel.Op) bool {
		return slices.Contains([]kernel.Kind{kernel.KindServer, kernel.KindAddress, kernel.KindDevice}, op.KindOf())
	})
	if len(moves) > 0 {
		c.Plan.Phases = append([]diff.Phase{{Name: "routes that become addresses", Ops: moves}}, c.Plan.Phases...)
	}
}

// Run applies the plan. It stops after a phase with a failure: later phases would remove objects that the next run
// needs to find the rest.
func (c *Cleanup) Run(ctx context.Context, report func(kernel.Op, error)) error {
	if err := c.steps.apply(ctx, c.Plan, report); err != nil {
		return fmt.Errorf("%w; run cleanup again", err)
	}
	return nil
}
