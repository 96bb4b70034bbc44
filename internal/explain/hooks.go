package explain

import (
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// The priorities with which IPVS takes packets: those it receives in LOCAL_IN, those of the node in LOCAL_OUT.
// https://elixir.bootlin.com/linux/v6.1/source/net/netfilter/ipvs/ip_vs_core.c#L2279
const (
	takesReceived = 98
	takesSent     = -98
)

// place is a built-in chain of iptables.
type place struct{ table, chain string }

// received and sent are what judges a packet before IPVS takes it, in the kernel's order.
var (
	received = []place{
		{"raw", "PREROUTING"}, {"mangle", "PREROUTING"}, {"nat", "PREROUTING"},
		{"mangle", "INPUT"}, {"filter", "INPUT"}, {"security", "INPUT"},
	}
	sent = []place{{"raw", "OUTPUT"}, {"mangle", "OUTPUT"}, {"nat", "OUTPUT"}}
)

// onward judges it when IPVS has put the endpoint's address into it. What a node sends was in the first two before.
func onward(p *packet) []place {
	all := []place{
		{"raw", "OUTPUT"}, {"mangle", "OUTPUT"}, {"filter", "OUTPUT"}, {"security", "OUTPUT"},
		{"mangle", "POSTROUTING"}, {"nat", "POSTROUTING"},
	}
	if p.sent {
		return all[2:]
	}
	return all
}

// chainsBefore are those of nftables' own that judge the packet before IPVS takes it.
func (e *explaining) chainsBefore(p *packet) bool {
	return e.ownChains(p, func(c kernel.BaseChain) bool {
		switch {
		case p.sent:
			return c.Hook == kernel.HookOutput && c.Priority < takesSent
		case c.Hook == kernel.HookInput:
			return c.Priority < takesReceived
		}
		return c.Hook == kernel.HookPrerouting
	})
}

// chainsAfter are those of nftables' own on the way to an endpoint.
func (e *explaining) chainsAfter(p *packet) bool {
	return e.ownChains(p, func(c kernel.BaseChain) bool {
		return c.Hook == kernel.HookPostrouting || c.Hook == kernel.HookOutput && (!p.sent || c.Priority > takesSent)
	})
}

// ownChains names the chains whose rules are not evaluated. It says whether the packet may get through them.
func (e *explaining) ownChains(p *packet, here func(kernel.BaseChain) bool) bool {
	for _, c := range e.k.Chains {
		switch {
		case !here(c) || !c.Covers(p.family()):
		case c.Rules == 0 && c.Drops:
			e.fail("nftables", c.String(), fmt.Sprintf("the chain %s %s %s has no rules, and its policy drops everything", c.Family, c.Table, c.Name))
			return false
		case c.Rules > 0:
			policy := "accepts"
			if c.Drops {
				policy = "drops"
			}
			e.stepOnce("nftables", c.String(), fmt.Sprintf("%d rules, which explain does not evaluate; what they do not judge the policy %s", c.Rules, policy), Depends)
			e.depends = true
			e.reason("rules of nftables' own in front may stop the packet; explain does not evaluate them: %s", c)
		}
	}
	return true
}
