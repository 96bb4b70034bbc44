package iptables

import (
	"context"
	"errors"
	"fmt"

	goiptables "github.com/coreos/go-iptables/iptables"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// remove deletes our jumps, then our chains. It continues after a failure, to remove as much as possible.
//
// The chains have kube-proxy's names, and kube-proxy may already be using them. Therefore, a chain with a foreign rule only loses our
// rules, and a chain to which a foreign rule jumps is emptied but not deleted.
func (b *Backend) remove(ctx context.Context, f inet.Family) error {
	s, err := b.save(ctx, f, b.tables)
	if err != nil {
		return err
	}
	c, err := b.cleaner(ctx, f)
	if err != nil {
		return err
	}
	plan := s.removal(b.ours)
	for _, r := range plan.rules {
		c.do("delete rule of chain "+r.String(), func() error { return unlessMissing(c.tool.Delete(r.Table, r.Chain, r.Args()...)) })
	}
	for _, id := range plan.empty {
		c.do("empty chain "+id.String(), func() error { return c.tool.ClearChain(id.Table, id.Chain) })
	}
	for _, id := range plan.drop {
		c.do("delete chain "+id.String(), func() error { return unlessMissing(c.tool.DeleteChain(id.Table, id.Chain)) })
	}
	return errors.Join(c.errs...)
}

type removal struct {
	rules []kernel.SavedRule // our rules in foreign or shared chains
	empty []kernel.ChainID   // all are emptied before any is deleted, because they jump to each other
	drop  []kernel.ChainID
}

func (s saved) removal(ours map[kernel.ChainID]bool) removal {
	shared, referenced := map[kernel.ChainID]bool{}, map[kernel.ChainID]bool{}
	for _, r := range s.rules {
		if tagOf(r, ours) == "" {
			shared[r.ChainID] = true
			if to, jumps := ParseRule(r.ChainID, r.Spec).Rule.Verdict.(kernel.JumpTo); jumps {
				referenced[kernel.ChainID{Table: r.Table, Chain: string(to)}] = true
			}
		}
	}
	var plan removal
	for _, r := range s.rules {
		if tagOf(r, ours) != "" && (!ours[r.ChainID] || shared[r.ChainID]) {
			plan.rules = append(plan.rules, r)
		}
	}
	for id := range s.chains {
		if !ours[id] || shared[id] {
			continue
		}
		plan.empty = append(plan.empty, id)
		if !referenced[id] {
			plan.drop = append(plan.drop, id)
		}
	}
	return plan
}

// cleaner makes single changes through go-iptables, which distinguishes a missing rule from an error.
type cleaner struct {
	ctx    context.Context
	tool   *goiptables.IPTables
	runner *runner
	errs   []error
}

func (b *Backend) cleaner(ctx context.Context, f inet.Family) (*cleaner, error) {
	b.runner.started.Add(1)
	tool, err := openTool(b.variant, f)
	if err != nil {
		return nil, err
	}
	return &cleaner{ctx: ctx, tool: tool, runner: b.runner}, nil
}

func (c *cleaner) do(what string, change func() error) {
	err := c.ctx.Err()
	if err == nil {
		c.runner.started.Add(1)
		err = change()
	}
	if err != nil {
		c.errs = append(c.errs, fmt.Errorf("%s: %w", what, err))
	}
}

// unlessMissing ignores the error if the object to delete does not exist. Checking first would require another process per object.
func unlessMissing(err error) error {
	var failed *goiptables.Error
	if errors.As(err, &failed) && failed.IsNotExist() {
		return nil
	}
	return err
}

func openTool(v Variant, f inet.Family) (*goiptables.IPTables, error) {
	protocol := goiptables.ProtocolIPv4
	if f == inet.IPv6 {
		protocol = goiptables.ProtocolIPv6
	}
	tool, err := goiptables.New(goiptables.Path(v.command(f, "")), goiptables.IPFamily(protocol), goiptables.Timeout(lockWait))
	if err != nil {
		return nil, fmt.Errorf("use %s: %w", v.command(f, ""), err)
	}
	return tool, nil
}
