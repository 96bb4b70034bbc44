package balance

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// swap replaces an element of a set. Without old, it adds an element; without new, it deletes one.
type swap struct{ old, new *entry }

// units returns the requests that turn the old frontend into the new one. A unit must be in one transaction. The first requests write what new connections need, the next ones
// write the frontend itself, and the last ones delete what is no longer used. The frontend therefore works even between two transactions.
func (w *change) units(chains comments) (units [][]nlbatch.Request) {
	var early, late []swap
	if w.from != nil && w.from.frontend == nil { // replace all elements
		for i := range w.from.entries {
			early = append(early, swap{old: &w.from.entries[i]})
		}
	}
	old, to := w.old(), w.to
	if to == nil {
		to = &frontend{}
	}
	early, late = swapSlots(w.key, 0, old.slots, to.slots, early, late)
	early, late = swapSlots(w.key, firstIdle, old.idle, to.idle, early, late)
	units = swaps(early)
	if to.hasAffinity() {
		units = append(units, w.affinityUnits(chains)...)
	}
	units = slices.Concat(units, swaps(w.swapOne(recordEntry)), swaps(w.swapOne(frontendEntry)), swaps(late))
	if all := slices.Concat(units...); w.from != nil && w.from.frontend == nil && bytesIn(all) < maxTransaction {
		return [][]nlbatch.Request{all} // without a moment in which the elements are missing
	}
	return units
}

func (w *change) affinityUnits(chains comments) [][]nlbatch.Request {
	unit, same := []nlbatch.Request{affinityMap(w.key)}, true
	for _, c := range w.to.affinity().chains() {
		unit, same = append(unit, c.Requests()...), same && chains.have(c)
	}
	if same && !w.to.forgetful {
		return nil
	}
	if w.to.forgetful {
		unit = append(unit, wire.Set(kernel.ClientsMap(w.key)).Flush())
	}
	return [][]nlbatch.Request{unit}
}

// swapOne replaces an element if a frontend has at most one element of that kind.
func (w *change) swapOne(of func(*frontend) *entry) []swap {
	var s swap
	if w.from != nil && w.from.frontend != nil {
		s.old = of(w.from.frontend)
	}
	if w.to != nil {
		s.new = of(w.to)
	}
	switch {
	case s.old == s.new || s.old != nil && s.new != nil && *s.old == *s.new:
		return nil
	case s.old != nil && s.new != nil && s.old.set != s.new.set: // from one map to the other
		return []swap{{new: s.new}, {old: s.old}}
	}
	return []swap{s}
}

func swapSlots(key kernel.ServerKey, first uint32, old, to []kernel.Destination, early, late []swap) (e, l []swap) {
	for n := range max(len(old), len(to)) {
		if n < len(old) && n < len(to) && old[n] == to[n] {
			continue // most slots of a large frontend: do not encode them
		}
		var s swap
		if n < len(old) {
			e := slotEntry(key, first+uint32(n), old[n])
			s.old = &e
		}
		if n < len(to) {
			e := slotEntry(key, first+uint32(n), to[n])
			s.new = &e
		}
		switch {
		case s.new == nil:
			late = append(late, s)
		case s.old == nil || *s.old != *s.new:
			early = append(early, s)
		}
	}
	return early, late
}

// swaps puts consecutive elements of one set into one unit: a request with deletions, then one with additions.
func swaps(all []swap) (units [][]nlbatch.Request) {
	for len(all) > 0 {
		set, n := all[0].set(), 0
		var unit []nlbatch.Request
		var old, new []entry
		for n < len(all) && n < wire.MaxElements && all[n].set() == set {
			if all[n].old != nil {
				old = append(old, *all[n].old)
			}
			if all[n].new != nil {
				new = append(new, *all[n].new)
			}
			n++
		}
		if len(old) > 0 {
			unit = append(unit, entriesRequest(unix.NFT_MSG_DELSETELEM, 0, old...))
		}
		if len(new) > 0 {
			unit = append(unit, entriesRequest(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE|unix.NLM_F_EXCL, new...))
		}
		units, all = append(units, unit), all[n:]
	}
	return units
}

func (s swap) set() string {
	if s.old != nil {
		return s.old.set
	}
	return s.new.set
}
