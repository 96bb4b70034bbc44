package difftest

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Since returns a checker for a sync that starts at the given state. It also reports wanted ports that answered at the start of the
// sync, but now refuse new connections or do not masquerade them.
func (c *Checker) Since(before *kernel.State) *Checker {
	since := *c
	since.before = before
	return &since
}

// interruptions lists missing set entries. Once our rules exist, packets to ports that answered before the sync need these entries.
func (v view) interruptions() []string {
	if v.want == nil || v.before == nil {
		return nil
	}
	began := view{v.Checker, v.before}
	var wrong []string
	for key, server := range v.want.Servers {
		if !began.answers(key) || !v.answers(key) || !v.rulesInPlace(key.Family()) {
			continue
		}
		for _, m := range v.needed(server) {
			if !v.s.HasMember(m) && !began.hasOwnServer(m, key) {
				wrong = append(wrong, Interrupted(m))
			}
		}
		if began.destinationsAreWanted(key) {
			wrong = append(wrong, v.idleGuards(key)...)
		}
	}
	return wrong
}

// hasOwnServer reports whether the port of an entry has its own virtual server. Packets match it before an all-ports server.
func (v view) hasOwnServer(m kernel.Member, allPorts kernel.ServerKey) bool {
	port := kernel.ServerKey{Addr: netip.AddrPortFrom(m.Element.Addr, m.Element.Port), Protocol: m.Element.Protocol}
	_, exists := v.s.Servers[port]
	return exists && port != allPorts
}

// Interrupted returns the violation for a wrong entry that affects packets that were served before.
func Interrupted(m kernel.Member) string {
	return fmt.Sprintf("a wrong set entry affects packets that were served before: %s", m)
}

func (v view) needed(server *want.Server) []kernel.Member {
	needed := slices.Clone(server.Members)
	if _, arrive := v.before.Addresses[server.Key.Addr.Addr()]; arrive {
		return needed
	}
	return slices.DeleteFunc(needed, func(m kernel.Member) bool { set, _ := v.want.Set(m.Set); return set.VIPs })
}

// idleGuards lists the guards of a port whose endpoints are all open to every client.
func (v view) idleGuards(key kernel.ServerKey) (wrong []string) {
	entry := want.LedgerEntry(v.base.Ledger, key).Element
	for _, set := range v.base.Sets {
		m := kernel.Member{Set: set.Name, Element: entry}
		if set.Timing == want.Guard && v.s.HasMember(m) && !v.want.HasMember(m) {
			wrong = append(wrong, Interrupted(m))
		}
	}
	return wrong
}

func (v view) answers(key kernel.ServerKey) bool {
	wanted := v.want.Server(key)
	return wanted != nil && slices.ContainsFunc(v.s.Servers[key].Destinations, func(d kernel.ObservedDestination) bool {
		return d.Weight > 0 && d.Forwarding == kernel.ForwardMasq &&
			slices.ContainsFunc(wanted.Destinations, func(w kernel.Destination) bool { return w.Addr == d.Addr })
	})
}
