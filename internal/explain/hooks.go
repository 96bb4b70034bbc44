package explain

import (
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// The priorities of the IPVS hooks: LOCAL_IN for received packets, LOCAL_OUT for packets sent by the node.
// https://elixir.bootlin.com/linux/v6.1/source/net/netfilter/ipvs/ip_vs_core.c#L2279
const (
	receivedPriority = 98
	sentPriority     = -98
)

// builtInChain is a built-in chain of iptables.
type builtInChain struct{ table, chain string }

// received and sent are the chains that a packet passes before IPVS, in the kernel's order.
var (
	received = []builtInChain{
		{"raw", "PREROUTING"}, {"mangle", "PREROUTING"}, {"nat", "PREROUTING"},
		{"mangle", "INPUT"}, {"filter", "INPUT"}, {"security", "INPUT"},
	}
	sent = []builtInChain{{"raw", "OUTPUT"}, {"mangle", "OUTPUT"}, {"nat", "OUTPUT"}}
)

// forwarded are the chains that a received packet passes after nftables has rewritten its destination.
var forwarded = []builtInChain{
	{"mangle", "FORWARD"}, {"filter", "FORWARD"}, {"security", "FORWARD"}, {"mangle", "POSTROUTING"}, {"nat", "POSTROUTING"},
}

// onward returns the chains that the packet passes after IPVS has rewritten its destination. A packet sent by the node has
// already passed the first two.
func onward(p *packet, balancing bool) []builtInChain {
	if balancing && !p.sent {
		return forwarded
	}
	all := []builtInChain{
		{"raw", "OUTPUT"}, {"mangle", "OUTPUT"}, {"filter", "OUTPUT"}, {"security", "OUTPUT"},
		{"mangle", "POSTROUTING"}, {"nat", "POSTROUTING"},
	}
	if p.sent {
		return all[2:]
	}
	return all
}

// chainsBefore checks the nftables chains that the packet passes before IPVS.
func (e *explaining) chainsBefore(p *packet) bool {
	return e.baseChains(p, func(c kernel.BaseChain) bool {
		switch {
		case p.sent:
			return c.Hook == kernel.HookOutput && c.Priority < sentPriority
		case c.Hook == kernel.HookInput:
			return c.Priority < receivedPriority && !e.k.Mode.NFTablesBalances()
		}
		return c.Hook == kernel.HookPrerouting
	})
}

// chainsAfter checks the nftables chains between IPVS and an endpoint.
func (e *explaining) chainsAfter(p *packet) bool {
	return e.baseChains(p, func(c kernel.BaseChain) bool {
		return c.Hook == kernel.HookPostrouting || c.Hook == kernel.HookOutput && (!p.sent || c.Priority > sentPriority)
	})
}

// baseChains lists the nftables chains whose rules are not evaluated. It returns false if one of them drops every packet.
func (e *explaining) baseChains(p *packet, here func(kernel.BaseChain) bool) bool {
	for _, c := range e.k.Chains {
		switch {
		case !here(c) || !c.Covers(p.family()):
		case c.Rules == 0 && c.Drops:
			e.fail("nftables", c.String(), fmt.Sprintf("the chain %s %s %s has no rules, and its policy drops everything", c.Family, c.Table, c.Name))
			return false
		case c.Rules > 0:
			policy := "accept"
			if c.Drops {
				policy = "drop"
			}
			e.stepOnce("nftables", c.String(), fmt.Sprintf("%d rules that explain does not evaluate; the policy is %s", c.Rules, policy), Depends)
			e.unclear = true
			e.reason("nftables rules may stop the packet; explain does not evaluate them: %s", c)
		}
	}
	return true
}
