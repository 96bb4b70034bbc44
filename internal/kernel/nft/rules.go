package nft

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/balance"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// baseChains correspond to the built-in chains of iptables. A nat chain runs right before the nat chain of iptables (-100 and 100),
// because only the first translation of a connection takes effect. A filter chain runs right before the filter chains of firewalls (0),
// so that it sees all packets.
var baseChains = map[kernel.ChainID]wire.Hook{
	{Table: "mangle", Chain: "PREROUTING"}: {Type: "filter", Number: unix.NF_INET_PRE_ROUTING, Priority: -150},
	{Table: "mangle", Chain: "INPUT"}:      {Type: "filter", Number: unix.NF_INET_LOCAL_IN, Priority: -150},
	{Table: "mangle", Chain: "OUTPUT"}:     {Type: "filter", Number: unix.NF_INET_LOCAL_OUT, Priority: -150},
	{Table: "nat", Chain: "PREROUTING"}:    {Type: "nat", Number: unix.NF_INET_PRE_ROUTING, Priority: -101},
	{Table: "nat", Chain: "OUTPUT"}:        {Type: "nat", Number: unix.NF_INET_LOCAL_OUT, Priority: -101},
	{Table: "nat", Chain: "POSTROUTING"}:   {Type: "nat", Number: unix.NF_INET_POST_ROUTING, Priority: 99},
	{Table: "filter", Chain: "INPUT"}:      {Type: "filter", Number: unix.NF_INET_LOCAL_IN, Priority: -1},
	{Table: "filter", Chain: "FORWARD"}:    {Type: "filter", Number: unix.NF_INET_FORWARD, Priority: -1},
	{Table: "filter", Chain: "OUTPUT"}:     {Type: "filter", Number: unix.NF_INET_LOCAL_OUT, Priority: -1},
}

func chainName(f inet.Family, id kernel.ChainID) string {
	return fmt.Sprintf("%s-%s-%d", id.Table, id.Chain, f)
}

// parseChain is the inverse of chainName. ok is false for a chain of another program.
func parseChain(name string) (f inet.Family, id kernel.ChainID, ok bool) {
	rest := name
	for _, family := range inet.Families {
		if before, found := strings.CutSuffix(name, fmt.Sprintf("-%d", family)); found {
			f, rest = family, before
		}
	}
	table, chain, found := strings.Cut(rest, "-")
	return f, kernel.ChainID{Table: table, Chain: chain}, found && f != 0
}

func newRule(f inet.Family, at kernel.ChainID, r kernel.Rule, base bool) (nlbatch.Request, error) {
	code, err := program(f, at, r, base)
	if err != nil {
		return nlbatch.Request{}, fmt.Errorf("%s %s %s: %w", f, at, r, err)
	}
	return wire.Chain(chainName(f, at)).Append(code, r.Comment()), nil
}

// ruleset returns the requests that write the rules. Chains come first, because rules jump to them. The last requests delete the unwanted
// existing chains.
func ruleset(r kernel.Ruleset, existing []string) ([]nlbatch.Request, error) {
	reqs := []nlbatch.Request{wire.NewTable()}
	wanted := map[string]bool{}
	var flushes, rules []nlbatch.Request
	declare := func(id kernel.ChainID, make func(wire.Chain) nlbatch.Request) {
		name := chainName(r.Family, id)
		if !wanted[name] {
			wanted[name] = true
			reqs, flushes = append(reqs, make(wire.Chain(name))), append(flushes, wire.Chain(name).Flush())
		}
	}
	write := func(at kernel.ChainID, rule kernel.Rule, base bool) error {
		req, err := newRule(r.Family, at, rule, base)
		rules = append(rules, req)
		return err
	}
	for _, c := range r.Chains {
		declare(c.ChainID, wire.Chain.Create)
		for _, rule := range c.Rules {
			if err := write(c.ChainID, rule, false); err != nil {
				return nil, err
			}
		}
	}
	for _, j := range r.Jumps {
		h, known := baseChains[j.ChainID]
		if !known {
			return nil, fmt.Errorf("nftables has no base chain for %s", j.ChainID)
		}
		declare(j.ChainID, func(c wire.Chain) nlbatch.Request { return c.CreateBase(h) })
		if err := write(j.ChainID, j.Rule, true); err != nil {
			return nil, err
		}
	}
	if balances(r) {
		reqs = append(reqs, wire.Chain(balance.Entrance(r.Family)).Create())
	}
	stale := slices.DeleteFunc(slices.Clone(existing), func(name string) bool { return wanted[name] })
	return slices.Concat(reqs, flushes, rules, wire.RemoveChains(stale)), nil
}

func balances(r kernel.Ruleset) bool {
	return slices.ContainsFunc(r.Chains, func(c kernel.Chain) bool {
		return slices.ContainsFunc(c.Rules, func(rule kernel.Rule) bool { return rule.Verdict == kernel.Balance{} })
	})
}
