// Package difftest checks that no packet sees a forbidden state, before and after every step of a plan (I5, I7). It implements the rules
// itself, so it checks package diff independently.
//
// Only tests import it.
package difftest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Checker checks kernel states, and the operations that lead to them.
type Checker struct {
	base  want.Base
	rules map[inet.Family]kernel.RulesView
	want  *diff.Target
	// before is the state when the sync began. Only Since sets it.
	before *kernel.State
}

// New returns a Checker for the part of the wanted state that does not depend on Services. Wanting adds the rest.
func New(base want.Base) *Checker {
	c := &Checker{base: base, rules: map[inet.Family]kernel.RulesView{}}
	for _, rules := range base.Rulesets {
		c.rules[rules.Family] = rules.View()
	}
	return c
}

// Violations lists the invariants that a kernel state violates.
func (c *Checker) Violations(s *kernel.State) []string {
	v, base := view{c, s}, c.base
	var wrong []string
	for addr := range s.Addresses {
		if v.listed(addr) && !v.served(addr) {
			wrong = append(wrong, fmt.Sprintf("address %s is bound without a virtual server", addr))
		}
	}
	for _, set := range base.Sets {
		if !accepts(set) {
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

func accepts(set want.Set) bool { return set.Timing == want.Late && !set.VIPs }

// Step returns the violation that the operation has caused, or an empty string. s is the state after the operation.
func (c *Checker) Step(op kernel.Op, s *kernel.State) string {
	v := view{c, s}
	deleted := op.Verb == kernel.Delete
	switch o := op.Object.(type) {
	case kernel.Server:
		return v.serverStep(o.Key, op.Verb)
	case kernel.ServerDestination:
		if !deleted {
			return v.destinationStep(o)
		}
	case kernel.Member:
		if wrong := v.guardStep(o, deleted); wrong != "" {
			return wrong
		}
		return v.memberStep(o, deleted)
	case kernel.BoundAddress:
		if !deleted && !o.Moved && !v.readyFor(o.Addr) {
			return "bound an address before its virtual server, its rules or its entry in the set of virtual addresses"
		}
	}
	return ""
}

func (v view) readyFor(addr netip.Addr) bool {
	return v.listed(addr) && v.served(addr) && v.rulesInPlace(inet.FamilyOf(addr))
}

func (v view) destinationStep(d kernel.ServerDestination) string {
	switch {
	case !v.entered(d.Server):
		return "wrote to a virtual server that is not in the ledger"
	case d.Weight > 0 && len(v.missingGuards(d.Server)) > 0:
		return fmt.Sprint("sent packets to a destination before its port was in ", v.missingGuards(d.Server))
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
		return fmt.Sprint("created a virtual server before it was in ", v.missingGuards(key))
	}
	return ""
}

func (v view) memberStep(m kernel.Member, deleted bool) string {
	_, exists := v.s.Servers[keyOf(m.Element)]
	switch {
	case deleted && strings.HasSuffix(m.Set, "LEDGER") && exists:
		return "removed the ledger entry of an existing virtual server"
	case deleted && strings.HasSuffix(m.Set, "VIP") && v.bound(m.Element.Addr):
		return "opened the node's ports on a bound address"
	case deleted && strings.HasSuffix(m.Set, "VIP") && v.takesAll(m.Element.Addr):
		return "opened every port of an address with an all-ports server"
	case !deleted && v.opens(m) && !v.takes(keyOf(m.Element)):
		return "opened a port without a virtual server"
	}
	return ""
}

func (v view) opens(m kernel.Member) bool {
	return slices.ContainsFunc(v.base.Sets, func(set want.Set) bool { return set.Name == m.Set && accepts(set) })
}

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
	_, exists := v.s.Servers[key]
	return exists && v.entered(key)
}

func (v view) bound(a netip.Addr) bool {
	_, bound := v.s.Addresses[a]
	return bound
}

// takes reports whether one of our virtual servers receives the packets to a port: the port's own, or an all-ports server.
func (v view) takes(port kernel.ServerKey) bool { return v.owned(port) || v.owned(port.AllPorts()) }

func (v view) takesAll(addr netip.Addr) bool {
	return slices.ContainsFunc([]inet.Protocol{inet.TCP, inet.UDP, inet.SCTP}, func(p inet.Protocol) bool {
		return v.owned(kernel.ServerKey{Addr: netip.AddrPortFrom(addr, 0), Protocol: p})
	})
}

func (v view) openPorts(server kernel.ServerKey) []kernel.ServerKey {
	var open []kernel.ServerKey
	for _, set := range v.base.Sets {
		for e := range v.s.Members[set.Name] {
			if port := keyOf(e); accepts(set) && (port == server || port.AllPorts() == server) {
				open = append(open, port)
			}
		}
	}
	return open
}

// openToAll lists the all-ports servers that receive the node's own packets to unserved ports.
func (v view) openToAll() []string {
	var wrong []string
	for key, server := range v.s.Servers {
		lacks := func(set string) bool {
			return !v.s.HasMember(kernel.Member{Set: set, Element: kernel.Element{Addr: key.Addr.Addr()}})
		}
		takesSome := slices.ContainsFunc(server.Destinations, func(d kernel.ObservedDestination) bool { return d.Weight > 0 })
		ours := v.owned(key) || v.want != nil && v.want.Server(key) != nil
		if key == key.AllPorts() && takesSome && ours && slices.ContainsFunc(v.base.AllPorts[key.Family()], lacks) {
			wrong = append(wrong, fmt.Sprintf("%s receives the node's packets to unserved ports", key))
		}
	}
	return wrong
}

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
		return accepts(set) && v.s.HasMember(kernel.Member{Set: set.Name, Element: kernel.Element{
			Addr: key.Addr.Addr(), Protocol: key.Protocol, Port: key.Addr.Port(),
		}})
	})
}

func (v view) rulesInPlace(f inet.Family) bool {
	rules, ok := v.rules[f]
	return ok && v.s.Rules[f].Holds(rules)
}
