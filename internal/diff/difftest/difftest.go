// Package difftest says what a packet must never meet, in any state and after any step (I5, I7).
//
// Only tests import it.
package difftest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Checker knows the part of the wanted state that does not depend on any Service, and the rest where it is told (Wanting).
type Checker struct {
	base  want.Base
	rules map[inet.Family]kernel.RulesView
	want  *want.State
	// before is the state in which everything began, where it is told (Since).
	before *kernel.State
}

// New returns a checker.
func New(base want.Base) *Checker {
	c := &Checker{base: base, rules: map[inet.Family]kernel.RulesView{}}
	for _, rules := range base.Rulesets {
		c.rules[rules.Family] = rules.View()
	}
	return c
}

// Violations lists what is wrong with a state of the kernel, whatever is wanted. Ours is what the sets of ours say.
func (c *Checker) Violations(s *kernel.State) []string {
	v, base := view{c, s}, c.base
	var wrong []string
	for addr := range s.Addresses {
		if v.listed(addr) && !v.served(addr) {
			wrong = append(wrong, fmt.Sprintf("address %s is bound without a virtual server", addr))
		}
	}
	for _, set := range base.Sets {
		if !letsIn(set) {
			continue
		}
		for e := range s.Members[set.Name] {
			if !v.takes(keyOf(e)) {
				wrong = append(wrong, fmt.Sprintf("port %s is open without a virtual server", e))
			}
		}
	}
	wrong = append(wrong, v.openToAll()...)
	wrong = append(wrong, v.guardViolations()...)
	wrong = append(wrong, v.interruptions()...)
	slices.Sort(wrong)
	return wrong
}

// letsIn says whether packets to the members of a set are served.
func letsIn(set want.Set) bool { return set.Timing == want.Late && !set.VIPs }

// Step says what is wrong with an operation that has just made s.
func (c *Checker) Step(op kernel.Op, s *kernel.State) string {
	v := view{c, s}
	deleted := op.Verb == kernel.Delete
	switch o := op.Object.(type) {
	case kernel.Server:
		return v.serverStep(o.Key, op.Verb)
	case kernel.ServerDestination:
		switch {
		case !deleted && !v.entered(o.Server):
			return "wrote to a virtual server that is not in the ledger"
		case !deleted && o.Weight > 0 && len(v.missingGuards(o.Server)) > 0:
			return fmt.Sprint("sent packets to a destination before they were in ", v.missingGuards(o.Server))
		}
	case kernel.Member:
		if wrong := v.guardStep(o, deleted); wrong != "" {
			return wrong
		}
		return v.memberStep(o, deleted)
	case kernel.BoundAddress:
		if !deleted && !(v.listed(o.Addr) && v.served(o.Addr) && v.rulesInPlace(inet.FamilyOf(o.Addr))) {
			return "bound an address before its virtual server, its rules or its place in the set of virtual addresses"
		}
	}
	return ""
}

func (v view) serverStep(key kernel.ServerKey, verb kernel.Verb) string {
	switch deleted := verb == kernel.Delete; {
	case deleted && slices.ContainsFunc(v.openPorts(key), func(port kernel.ServerKey) bool { return !v.takes(port) }):
		return "deleted a virtual server whose port is open"
	case deleted && v.bound(key.Addr.Addr()) && v.listed(key.Addr.Addr()) && !v.served(key.Addr.Addr()):
		return "deleted the last virtual server of a bound address"
	case !deleted && !v.entered(key):
		return "wrote a virtual server that is not in the ledger"
	case !deleted && !v.rulesInPlace(key.Family()):
		return "wrote a virtual server without its rules"
	case verb == kernel.Create && len(v.missingGuards(key)) > 0:
		return fmt.Sprint("made a virtual server before it was in ", v.missingGuards(key))
	}
	return ""
}

func (v view) memberStep(m kernel.Member, deleted bool) string {
	_, stands := v.s.Servers[keyOf(m.Element)]
	switch {
	case deleted && strings.HasSuffix(m.Set, "LEDGER") && stands:
		return "took a virtual server that stands out of the ledger"
	case deleted && strings.HasSuffix(m.Set, "VIP") && v.bound(m.Element.Addr):
		return "opened the node's ports on a bound address"
	case deleted && strings.HasSuffix(m.Set, "VIP") && v.takesAll(m.Element.Addr):
		return "opened every port of an address to the virtual server that takes them all"
	case !deleted && v.opens(m) && !v.takes(keyOf(m.Element)):
		return "opened a port without a virtual server"
	}
	return ""
}

// opens says whether a member lets packets in.
func (v view) opens(m kernel.Member) bool {
	return slices.ContainsFunc(v.base.Sets, func(set want.Set) bool { return set.Name == m.Set && letsIn(set) })
}

// view answers questions about a state.
type view struct {
	*Checker
	s *kernel.State
}

func keyOf(e kernel.Element) kernel.ServerKey {
	return kernel.ServerKey{Addr: netip.AddrPortFrom(e.Addr, e.Port), Protocol: e.Protocol}
}

func (v view) entered(key kernel.ServerKey) bool {
	return v.s.HasMember(want.LedgerEntry(v.base.Ledger, key))
}

func (v view) owned(key kernel.ServerKey) bool {
	_, stands := v.s.Servers[key]
	return stands && v.entered(key)
}

func (v view) bound(a netip.Addr) bool {
	_, bound := v.s.Addresses[a]
	return bound
}

// takes says whether a virtual server of ours takes the packets to a port: one that stands there, or the one for all ports.
func (v view) takes(port kernel.ServerKey) bool { return v.owned(port) || v.owned(port.AllPorts()) }

// takesAll says whether a virtual server of ours takes the packets to every port of the address.
func (v view) takesAll(addr netip.Addr) bool {
	return slices.ContainsFunc([]inet.Protocol{inet.TCP, inet.UDP, inet.SCTP}, func(p inet.Protocol) bool {
		return v.owned(kernel.ServerKey{Addr: netip.AddrPortFrom(addr, 0), Protocol: p})
	})
}

// openPorts are the ports that a virtual server may serve and that packets are let in to.
func (v view) openPorts(server kernel.ServerKey) []kernel.ServerKey {
	var open []kernel.ServerKey
	for _, set := range v.base.Sets {
		for e := range v.s.Members[set.Name] {
			if port := keyOf(e); letsIn(set) && (port == server || port.AllPorts() == server) {
				open = append(open, port)
			}
		}
	}
	return open
}

// openToAll lists the virtual servers for all ports from which the node's own packets to closed ports are not kept away.
func (v view) openToAll() []string {
	var wrong []string
	for key, server := range v.s.Servers {
		addr := kernel.Element{Addr: key.Addr.Addr()}
		takesSome := slices.ContainsFunc(server.Destinations, func(d kernel.ObservedDestination) bool { return d.Weight > 0 })
		ours := v.owned(key) || v.want != nil && v.want.Servers[key] != nil
		if key == key.AllPorts() && takesSome && ours && !v.s.HasMember(kernel.Member{Set: v.base.AllPorts[key.Family()], Element: addr}) {
			wrong = append(wrong, fmt.Sprintf("%s takes the node's packets to closed ports", key))
		}
	}
	return wrong
}

// listed says whether the set of virtual addresses has it.
func (v view) listed(a netip.Addr) bool {
	return slices.ContainsFunc(v.base.Sets, func(set want.Set) bool {
		return set.VIPs && v.s.HasMember(kernel.Member{Set: set.Name, Element: kernel.Element{Addr: a}})
	})
}

func (v view) served(a netip.Addr) bool {
	for key := range v.s.Servers {
		if key.Addr.Addr() == a && v.owned(key) {
			return true
		}
	}
	return false
}

func (v view) open(key kernel.ServerKey) bool {
	return slices.ContainsFunc(v.base.Sets, func(set want.Set) bool {
		return letsIn(set) && v.s.HasMember(kernel.Member{Set: set.Name, Element: kernel.Element{
			Addr: key.Addr.Addr(), Protocol: key.Protocol, Port: key.Addr.Port(),
		}})
	})
}

func (v view) rulesInPlace(f inet.Family) bool {
	rules, ok := v.rules[f]
	return ok && v.s.Rules[f].Holds(rules)
}
