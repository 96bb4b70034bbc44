package explain

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// The priorities of IPVS's hooks: LOCAL_IN for received packets, LOCAL_OUT for packets sent by the node. nftables
// balances at the priority of table nat, before a packet is routed.
// https://elixir.bootlin.com/linux/v6.1/source/net/netfilter/ipvs/ip_vs_core.c#L2279
const (
	receivedPriority = 98
	sentPriority     = -98
	balancePriority  = -100
	trackPriority    = -200
)

const (
	first = math.MinInt32
	last  = math.MaxInt32
)

// place describes a packet's position in the kernel: whether it has an incoming and an outgoing interface, and whether
// it has yet to pass connection tracking.
type place struct{ arrives, leaves, untracked bool }

// builtInChains are the built-in chains of iptables at each hook, in the kernel's order, with their priorities.
var builtInChains = map[kernel.Hook][]stage{
	kernel.HookPrerouting:  {{priority: -300, table: "raw"}, {priority: -150, table: "mangle"}, {priority: -100, table: "nat"}},
	kernel.HookInput:       {{priority: -150, table: "mangle"}, {priority: 0, table: "filter"}, {priority: 50, table: "security"}, {priority: 100, table: "nat"}},
	kernel.HookForward:     {{priority: -150, table: "mangle"}, {priority: 0, table: "filter"}, {priority: 50, table: "security"}},
	kernel.HookPostrouting: {{priority: -150, table: "mangle"}, {priority: 100, table: "nat"}},
	kernel.HookOutput: {
		{priority: -300, table: "raw"}, {priority: -150, table: "mangle"}, {priority: -100, table: "nat"}, {priority: 0, table: "filter"},
		{priority: 50, table: "security"},
	},
}

var hookNames = map[kernel.Hook]string{
	kernel.HookPrerouting: "PREROUTING", kernel.HookInput: "INPUT", kernel.HookForward: "FORWARD", kernel.HookOutput: "OUTPUT",
	kernel.HookPostrouting: "POSTROUTING",
}

// stage is a chain that a hook calls: a built-in chain of iptables-nft or iptables-legacy, or an nftables base chain.
type stage struct {
	priority int32
	table    string
	legacy   bool
	base     *kernel.BaseChain
}

// at names the current stage for the steps.
func (w *walk) at() string {
	switch s := w.stage; {
	case s.base != nil:
		return "nftables " + hookNames[w.hook]
	case s.legacy:
		return "iptables-legacy " + s.table + " " + hookNames[w.hook]
	default:
		return s.table + " " + hookNames[w.hook]
	}
}

// segment is the part of a hook from one priority up to, but not including, another.
type segment struct {
	hook        kernel.Hook
	from, below int32
}

// before returns the hooks that a packet passes before an endpoint is selected.
func (e *explaining) before(p *packet) []segment {
	balancing := e.k.Mode.NFTablesBalances()
	switch {
	case p.sent && balancing:
		return []segment{{kernel.HookOutput, first, balancePriority + 1}}
	case p.sent:
		return []segment{{kernel.HookOutput, first, sentPriority}}
	case balancing:
		return []segment{{kernel.HookPrerouting, first, balancePriority + 1}}
	}
	return []segment{{kernel.HookPrerouting, first, last}, {kernel.HookInput, first, receivedPriority}}
}

// after returns the hooks that a packet passes with the endpoint as its destination. IPVS sends a packet to another
// host through OUTPUT; nftables rewrites the destination before the packet is routed.
func (e *explaining) after(p *packet) []segment {
	local, output := e.k.IsLocal(p.to.Addr()), segment{kernel.HookOutput, first, last}
	arriving := segment{kernel.HookInput, first, last}
	leaving := segment{kernel.HookPostrouting, first, last}
	balancing := e.k.Mode.NFTablesBalances()
	switch {
	case p.sent && balancing:
		output.from = balancePriority + 1
	case p.sent && local:
		output.from = sentPriority
	case p.sent: // all of OUTPUT again, but the connection has already passed table nat
		return []segment{{kernel.HookOutput, first, balancePriority}, {kernel.HookOutput, sentPriority, last}, leaving}
	case balancing && local:
		return []segment{{kernel.HookPrerouting, balancePriority + 1, last}, arriving}
	case balancing:
		return []segment{{kernel.HookPrerouting, balancePriority + 1, last}, {kernel.HookForward, first, last}, leaving}
	case local:
		arriving.from = receivedPriority
		return []segment{arriving}
	}
	if p.sent && local {
		return []segment{output, leaving, {kernel.HookPrerouting, first, last}, arriving}
	}
	return []segment{output, leaving}
}

// back returns the hooks that the reply passes on this node.
func (e *explaining) back(p *packet, toNode bool) []segment {
	whole := func(hooks ...kernel.Hook) (all []segment) {
		for _, h := range hooks {
			all = append(all, segment{h, first, last})
		}
		return all
	}
	switch {
	case p.sent && toNode:
		return whole(kernel.HookOutput, kernel.HookPostrouting, kernel.HookPrerouting, kernel.HookInput)
	case p.sent:
		return whole(kernel.HookOutput, kernel.HookPostrouting)
	case toNode:
		return whole(kernel.HookPrerouting, kernel.HookInput)
	}
	return whole(kernel.HookPrerouting, kernel.HookForward, kernel.HookPostrouting)
}

// stages returns the chains in a segment of a hook, in the kernel's order.
func (w *walk) stages(p *packet, s segment) (all []stage) {
	all = make([]stage, 0, 2*len(builtInChains[s.hook])+len(w.k.Chains))
	for _, c := range builtInChains[s.hook] {
		if s.from <= c.priority && c.priority < s.below {
			all = append(all, c)
			if _, exists := w.k.Legacy[p.family].Policies[kernel.ChainID{Table: c.table, Chain: hookNames[s.hook]}]; exists {
				c.legacy = true
				all = append(all, c)
			}
		}
	}
	for i, c := range w.k.Chains {
		if c.Hook == s.hook && c.Covers(p.family) && s.from <= c.Priority && c.Priority < s.below {
			all = append(all, stage{priority: c.Priority, base: &w.k.Chains[i]})
		}
	}
	slices.SortStableFunc(all, func(a, b stage) int { return cmp.Compare(a.priority, b.priority) })
	return all
}

// passAll walks segments of hooks. It returns false if the packet was stopped.
func (w *walk) passAll(p *packet, hooks []segment) bool {
	return !slices.ContainsFunc(hooks, func(s segment) bool { return !w.pass(p, s) })
}

// pass walks the chains in a segment of a hook. It returns false if the packet was stopped.
func (w *walk) pass(p *packet, s segment) bool {
	p.enters(s)
	for _, c := range w.stages(p, s) {
		w.hook, w.stage = s.hook, c
		w.place = place{
			arrives: s.hook != kernel.HookOutput, leaves: s.hook != kernel.HookPrerouting && s.hook != kernel.HookInput,
			untracked: c.priority < trackPriority && !p.attached,
		}
		if c.base == nil && !w.builtIn(p) || c.base != nil && !w.base(p, *c.base) {
			return false
		}
		if p.reply && s.hook == kernel.HookPrerouting && c.priority >= balancePriority { // the kernel has translated the destination back
			p.to = netip.AddrPortFrom(p.original.from, p.original.port)
		}
	}
	tracks := s.hook == kernel.HookPrerouting || s.hook == kernel.HookOutput
	p.attached = p.attached || tracks && s.below > trackPriority
	return true
}

// enters sets the incoming interface of a packet that this node sends.
func (p *packet) enters(s segment) {
	switch {
	case !p.sent:
	case s.hook == kernel.HookPrerouting || s.hook == kernel.HookInput: // the endpoint is on the node itself
		p.in = loopback
	default:
		p.in = ""
	}
}

// base walks an nftables base chain and applies its policy.
func (w *walk) base(p *packet, c kernel.BaseChain) bool {
	rules, read := w.k.NFTables.Rules[c.Chain()]
	policy := "accept"
	if c.Drops {
		policy = "drop"
	}
	if !read && c.Rules > 0 {
		w.note(c.String(), fmt.Sprintf("%d rules that explain did not read; the policy is %s", c.Rules, policy), Depends)
		w.unread = append(w.unread, c.String())
		return true
	}
	w.inNAT = c.Kind == "nat"
	if w.skipsNAT(p) {
		return true
	}
	w.exempts = condition{}
	says := "no rule accepts the packet; the chain policy drops it"
	if len(rules) == 0 {
		says = fmt.Sprintf("the chain %s %s %s has no rules, and its policy drops everything", c.Family, c.Table, c.Name)
	}
	return w.end(w.nftChain(p, c.Chain(), flow{certain: true}, 0), c.Drops, c.String, says)
}
