package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// sourceNAT is the source that a rule gives, or may give, a connection.
type sourceNAT struct {
	rule string
	// first and last are the addresses. They are not set if the address is the node's, or if it is unknown.
	first, last netip.Addr
	unknown     bool
	ports       int // the number of source ports; 0 for all
	flow        flow
}

// FewPorts is the number of source ports below which a busy node, or its clients, may run out of them.
const FewPorts = 1000

func sourceOf(v kernel.SourceNAT) sourceNAT {
	return sourceNAT{first: v.First, last: v.Last, ports: v.Ports.Count()}
}

// isNodes reports whether the source is an address of this node. Virtual addresses do not count, because other nodes have them, too.
func (k *Kernel) isNodes(n sourceNAT) matchResult {
	switch {
	case n.unknown:
		return maybe
	case !n.first.IsValid():
		return yes
	case n.first == n.last:
		return resultOf(k.isNode(n.first) && !n.first.IsLoopback())
	case slices.ContainsFunc(k.NodeAddresses, func(a netip.Addr) bool { return between(a, n.first, n.last) == yes }):
		return maybe
	}
	return no
}

func (n sourceNAT) String() string {
	switch {
	case n.unknown || !n.first.IsValid():
		return "an unknown address"
	case n.first == n.last:
		return n.first.String()
	}
	return n.first.String() + "-" + n.last.String()
}

// masquerade changes the source of the connection.
func (w *walk) masquerade(r shown, f flow, n sourceNAT) end {
	sees := "this node's address"
	if w.k.isNodes(n) != yes {
		sees = n.String()
	}
	w.record(r, f, "the endpoint sees "+sees+" instead of the client's", Passes)
	f = flow{f.certain && !w.exempts.opaque, f.on}
	n.rule, n.flow = r.object(), f
	w.sources = append(w.sources, n)
	if !f.certain {
		w.depends = append(w.depends, f.on.text)
		return continues
	}
	w.masquerades = n.rule
	return accepted
}

// here reports whether an endpoint is on this node, so that its replies pass through this node.
func (e *explaining) here(endpoint netip.AddrPort) matchResult {
	if e.k.IsLocal(endpoint.Addr()) {
		return yes
	}
	known := e.known(endpoint)
	if known == nil || known.Node == "" || e.node == "" {
		return maybe
	}
	return resultOf(known.Node == e.node)
}

// returns checks that the endpoint's replies return to this node, which restores the Service's address in them.
func (e *explaining) returns(w *walk, p *packet, d kernel.ObservedDestination) bool {
	return e.sourceReturns(w, d) && e.masqueraded(w, p, d)
}

// sourceReturns checks the source addresses and ports that rules give the connection.
func (e *explaining) sourceReturns(w *walk, d kernel.ObservedDestination) bool {
	here := e.here(d.Addr)
	for _, n := range w.sources {
		if n.ports > 0 && n.ports < FewPorts {
			e.reason(Unclear, []string{n.rule}, "this rule limits the number of source ports to %d; while all are in use, new connections to the same endpoint fail: %s", n.ports, n.rule)
		}
		own := e.k.isNodes(n)
		if own == yes || here == yes && !n.first.IsLoopback() {
			continue
		}
		says := fmt.Sprintf("replies of endpoint %s do not return to this node: the connection gets the source address %s, which this node does not have", d.Addr, n)
		if !e.lost("reply", says, []string{n.rule}, n.flow, own == no && here == no) {
			return false
		}
	}
	return true
}

// masqueraded checks that the connection is masqueraded if the agent's rules would masquerade it and the endpoint's replies do not pass through
// this node anyway.
func (e *explaining) masqueraded(w *walk, p *packet, d kernel.ObservedDestination) bool {
	here := e.here(d.Addr)
	hairpin := p.from == d.Addr.Addr()
	if w.masquerades != "" || e.out.Connection != "" || here == yes && !hairpin || !e.wouldMasquerade(d) {
		return true
	}
	causes := slices.Concat(e.inbound.meddlers, w.meddlers, e.inbound.untracks, w.untracks)
	f := flow{certain: len(w.depends) == 0 && p.from.IsValid(), on: condition{opaque: len(w.depends) > 0}}
	if !f.certain && len(causes) == 0 {
		return true
	}
	says := fmt.Sprintf("replies of endpoint %s do not return to this node: another rule prevents masquerading by the agent's rules", d.Addr)
	return e.lost("reply", says, causes, f, here == no || hairpin)
}

// lost records that rules make packets get lost, or may do so. known is false if explain cannot tell. It returns false if the packets are lost.
func (e *explaining) lost(at, says string, rules []string, f flow, known bool) bool {
	rule := strings.Join(rules, ", ")
	switch {
	case !known, !f.certain && f.on.opaque:
		e.reason(Unclear, rules, "explain cannot rule out that %s; rule: %s", says, rule)
	case !f.certain:
		e.reason(Depends, rules, "for some clients, %s; rule: %s", says, rule)
	default:
		e.stepOnce(at, rule, says, Stops)
		e.reason(Partly, rules, "%s; rule: %s", says, rule)
		return false
	}
	return true
}

// wouldMasquerade reports whether the agent's rules alone would masquerade the connection to an endpoint.
func (e *explaining) wouldMasquerade(d kernel.ObservedDestination) bool {
	if e.alone == nil {
		e.alone = e.k.withoutForeignRules()
	}
	p, w := newPacket(e.alone, e.q), &walk{k: e.alone, quiet: true}
	if !w.passAll(p, e.before(p)) {
		return false
	}
	p.to, p.out, p.translated = d.Addr, e.k.outInterface(d.Addr.Addr()), e.k.Mode.NFTablesBalances()
	return w.passAll(p, e.after(p)) && w.masquerades != ""
}

func (k *Kernel) withoutForeignRules() *Kernel {
	alone := *k
	alone.Legacy, alone.Chains, alone.NFTables, alone.Rules = nil, nil, kernel.NFTables{}, map[inet.Family]kernel.RuleListing{}
	for family, l := range k.Rules {
		ours := map[kernel.ChainID][]kernel.SavedRule{}
		for id, rules := range l.Rules {
			for _, r := range rules {
				if r.Tag != "" {
					ours[id] = append(ours[id], r)
				}
			}
		}
		alone.Rules[family] = kernel.RuleListing{Rules: ours}
	}
	return &alone
}

// source returns the source address that the endpoint sees.
func (e *explaining) source(w *walk, p *packet) string {
	own := "this node"
	if last := len(w.sources) - 1; last >= 0 && e.k.isNodes(w.sources[last]) != yes {
		own = w.sources[last].String()
	}
	switch {
	case p.tracking == established:
		return "unchanged since the connection started"
	case w.masquerades != "" && e.q.From.IsValid():
		return own
	case w.masquerades != "" && e.someExempt():
		return own + ", unless a rule above exempts the client"
	case w.masquerades != "":
		return own
	case len(w.depends) > 0:
		return "the client, or " + own + " if the packet matches " + strings.Join(w.depends, "; ")
	}
	return "the client"
}
