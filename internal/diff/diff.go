package diff

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

func planAll(w *Target, have *kernel.State, opt Options) Plan {
	b := &builder{seed: w.Base().Seed}
	b.base(w, have, opt)
	b.sets(w, have)
	b.allMembers(w, have)
	b.allServers(w, have, opt)
	ours := ownedAddresses(w, have, opt)
	for addr, bound := range have.Addresses {
		if own, some := ownBinding(ours, addr, bound); some && !w.HasAddress(addr) {
			b.add(phaseAddressesOut, kernel.Delete, kernel.BoundAddress{Addr: addr, Binding: own})
		}
	}
	for addr := range w.Addresses {
		b.address(w, have, addr)
	}
	return b.plan()
}

func planTouched(w *Target, have *kernel.State, touched *want.Touched, opt Options) Plan {
	b := &builder{seed: w.Base().Seed}
	if touched.Rules {
		b.rules(w, have)
	}
	ours := map[netip.Addr]bool{}
	for _, key := range slices.SortedFunc(maps.Keys(touched.Servers), kernel.ServerKey.Compare) {
		owned := recorded(w, have, key, opt)
		if w.Server(key) != nil || owned {
			b.server(w, have, key, opt)
		}
		ours[key.Addr.Addr()] = ours[key.Addr.Addr()] || owned
	}
	for m := range touched.Members {
		b.member(w, have, m)
	}
	for addr := range touched.Addresses {
		if w.HasAddress(addr) || ours[addr] || listedAddress(w, have, addr) {
			b.address(w, have, addr)
		}
	}
	return b.plan()
}

// BaseDiffers reports whether the kernel differs from the wanted base. All Services depend on the base: sysctls, timeouts, the
// device, rules and the sets themselves.
func BaseDiffers(w *Target, have *kernel.State, opt Options) bool {
	b := &builder{seed: w.Base().Seed}
	b.base(w, have, opt)
	b.sets(w, have)
	return b.plan().Len() > 0
}

func (b *builder) base(w *Target, have *kernel.State, opt Options) {
	for _, s := range w.Base().Sysctls {
		b.sysctl(have, s, opt)
	}
	if !have.Timeouts.Holds(w.Base().Timeouts) {
		b.add(phaseSysctls, kernel.Ensure, w.Base().Timeouts)
	}
	if !have.Device {
		b.add(phaseDevice, kernel.Create, kernel.DummyDevice{})
	}
	b.rules(w, have)
}

func (b *builder) sysctl(have *kernel.State, s kernel.SysctlSetting, opt Options) {
	value, exists := have.Sysctls[s.Name]
	if value == s.Value || s.Optional && (!exists || opt.Unsettable != nil && opt.Unsettable(s) != nil) {
		return
	}
	b.add(phaseSysctls, kernel.Ensure, s)
}

func (b *builder) rules(w *Target, have *kernel.State) {
	for _, rules := range w.Base().Rulesets {
		if !have.Rules[rules.Family].Holds(rules.View()) {
			b.add(phaseRules, kernel.Ensure, rules)
		}
	}
}

func (b *builder) sets(w *Target, have *kernel.State) {
	var families []inet.Family
	for _, set := range w.Base().Sets {
		families = append(families, set.Family)
		switch current, exists := have.Sets[set.Name]; {
		case !exists:
			b.add(phaseSets, kernel.Create, set.Set)
		case current != set.Set:
			b.add(phaseSets, kernel.Update, set.Set)
		}
	}
	for name, set := range have.Sets {
		// If this node no longer serves a family, the family's rules still use its sets. Only cleanup removes those rules.
		if _, ok := w.Set(name); !ok && slices.Contains(families, set.Family) {
			b.add(phaseSetsOut, kernel.Delete, set)
		}
	}
}

func (b *builder) allMembers(w *Target, have *kernel.State) {
	for m := range w.Members {
		b.member(w, have, m)
	}
	for _, set := range w.Base().Sets {
		if now := have.Sets[set.Name]; now.Type != set.Type || now.Family != set.Family {
			continue // replacing the set removes its members
		}
		for element := range have.Members[set.Name] {
			if m := (kernel.Member{Set: set.Name, Element: element}); !w.HasMember(m) {
				b.member(w, have, m)
			}
		}
	}
}

func (b *builder) member(w *Target, have *kernel.State, m kernel.Member) {
	wanted, exists := w.HasMember(m), have.HasMember(m)
	in, out := memberPhases(w, have, m)
	switch {
	case wanted && !exists && isSeal(w, m):
		b.add(phaseSeal, kernel.Create, m)
	case wanted && !exists:
		b.add(in, kernel.Create, m)
	case !wanted && exists:
		b.add(out, kernel.Delete, m)
	}
}

func memberPhases(w *Target, have *kernel.State, m kernel.Member) (in, out phaseIndex) {
	matched := match(w, have, keyOf(m.Element))
	switch set, _ := w.Set(m.Set); {
	case set.Timing == want.Early:
		return phaseEarlyMembersIn, phaseEarlyMembersOut
	case set.Timing == want.Guard && settled(w, have, matched):
		return phaseGuardsIn, phaseIdleGuardsOut
	case set.Timing == want.Guard:
		return phaseGuardsIn, phaseGuardsOut
	case set.VIPs && answersAt(w, have, m.Element.Addr):
		return phaseAnsweringMembersIn, phaseGuardsOut
	case set.VIPs:
		return phaseLateMembersIn, phaseGuardsOut
	case answers(w, have, matched):
		return phaseAnsweringMembersIn, phaseLateMembersOut
	}
	return phaseLateMembersIn, phaseLateMembersOut
}

func isSeal(w *Target, m kernel.Member) bool {
	for family := range w.Base().Ledger {
		if m == want.Seal(w.Base().Ledger, family) {
			return true
		}
	}
	return false
}

func (b *builder) address(w *Target, have *kernel.State, addr netip.Addr) {
	now, bound := have.Addresses[addr]
	binding := w.Base().BindingOf(addr)
	switch wanted := w.HasAddress(addr); {
	case wanted && bound && now == binding:
	case wanted && addr.Is6() && have.IPv6Off(): // must wait until an operator enables IPv6
	case wanted:
		b.add(phaseAddressesIn, kernel.Create, kernel.BoundAddress{Addr: addr, Binding: binding, Moved: bound})
	case bound:
		b.add(phaseAddressesOut, kernel.Delete, kernel.BoundAddress{Addr: addr, Binding: now})
	}
}

func (b *builder) allServers(w *Target, have *kernel.State, opt Options) {
	keys, missing := w.Keys(), 0
	for _, key := range keys {
		missing += max(len(w.Server(key).Destinations)-len(have.Servers[key].Destinations), 0)
	}
	b.phases[phaseDestinationsIn] = make([]kernel.Op, 0, missing)
	for _, key := range keys { // sortOps keeps this order for destinations
		b.server(w, have, key, opt)
	}
	for key := range have.Servers {
		if wanted(w, key) == nil && recorded(w, have, key, opt) {
			b.server(w, have, key, opt)
		}
	}
}

func (b *builder) server(w *Target, have *kernel.State, key kernel.ServerKey, opt Options) {
	wanted := w.Server(key)
	current, exists := have.Servers[key]
	switch {
	case wanted != nil && !exists:
		b.add(phaseServers, kernel.Create, wanted.Server)
		b.destinations(wanted, nil, opt)
	case wanted != nil:
		if server := wanted.Over(current.Server); server != current.Server {
			b.add(phaseServers, kernel.Update, server)
		}
		b.destinations(wanted, current.Destinations, opt)
	case exists && w.Foreign()[key] == nil:
		b.add(phaseServersOut, kernel.Delete, current.Server) // this also deletes its destinations
	}
}

// destinations merges the wanted and the existing destinations, both sorted.
func (b *builder) destinations(wanted *want.Server, have []kernel.ObservedDestination, opt Options) {
	key := wanted.Key
	added, i := b.added[:0], 0
	for _, w := range wanted.Destinations {
		for i < len(have) && have[i].Addr != w.Addr && have[i].Compare(w) < 0 {
			b.release(wanted, have[i], opt)
			i++
		}
		w.Weight = opt.weight(wanted, w)
		if i == len(have) || have[i].Addr != w.Addr {
			added = append(added, w)
			continue
		}
		if have[i].Destination != w || have[i].Forwarding != kernel.ForwardMasq {
			b.add(phaseDestinationsIn, kernel.Update, kernel.ServerDestination{Server: key, Destination: w})
		} else if w.Weight == 0 && opt.Draining != nil && opt.Draining(key, w.Addr) {
			b.atZero = append(b.atZero, kernel.ServerDestination{Server: key, Destination: w})
		}
		i++
	}
	for ; i < len(have); i++ {
		b.release(wanted, have[i], opt)
	}
	b.added = added
	b.entry.sort(wanted.Scheduler, b.seed, added)
	for _, w := range added {
		b.add(phaseDestinationsIn, kernel.Create, kernel.ServerDestination{Server: key, Destination: w})
	}
}

// IPv6Missing reports whether wanted addresses cannot be bound because IPv6 is disabled on kube-ipvs0.
func IPv6Missing(w *Target, have *kernel.State) bool {
	if !have.IPv6Off() {
		return false
	}
	for addr := range w.Addresses {
		if addr.Is6() {
			return true
		}
	}
	return false
}

// Drains lists the virtual servers that have a draining destination.
func Drains(w *Target, have *kernel.State) []kernel.ServerKey {
	var keys []kernel.ServerKey
	for key, server := range w.Servers {
		if slices.ContainsFunc(have.Servers[key].Destinations, func(d kernel.ObservedDestination) bool {
			return Draining(server, d)
		}) {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, kernel.ServerKey.Compare)
	return keys
}

// MayHaveLimits lists the virtual servers whose destinations have or need connection limits. A full read does not show the limits, so these
// servers must be looked up.
func MayHaveLimits(w *Target, have *kernel.State) []kernel.ServerKey {
	limited := map[kernel.ServerKey]struct{}{}
	for _, set := range w.Base().Limited {
		for element := range have.Members[set] {
			limited[keyOf(element)] = struct{}{}
		}
	}
	for key := range w.Limited {
		limited[key] = struct{}{}
	}
	return slices.SortedFunc(maps.Keys(limited), kernel.ServerKey.Compare)
}
