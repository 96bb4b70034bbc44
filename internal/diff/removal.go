package diff

import (
	"maps"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Removal plans the removal of everything that is ours (I5); foreign objects stay. have must be freshly read, and w must have no Services.
//
// The addresses are removed first, so that no more packets arrive. The ledger is removed last, so that an interrupted cleanup can be
// repeated.
func Removal(w *Target, have *kernel.State) Plan {
	var plan Plan
	add := func(name string, ops []kernel.Op) {
		if len(ops) > 0 {
			sortOps(ops)
			plan.Phases = append(plan.Phases, Phase{Name: name, Ops: ops})
		}
	}
	addresses, all := removeAddresses(w, have)
	add(phaseNames[phaseAddressesOut], addresses)
	add(phaseNames[phaseServersOut], removeServers(w, have))
	add("chains to remove", removeRules(w, have))
	sets, ledgers := removeSets(w, have)
	add(phaseNames[phaseSetsOut], sets)
	add("ownership entries to remove", ledgers)
	if have.Device && all {
		add("device to remove", []kernel.Op{{Verb: kernel.Delete, Object: kernel.DummyDevice{}}})
	}
	return plan
}

// removeAddresses also reports whether all addresses are ours.
func removeAddresses(w *Target, have *kernel.State) (ops []kernel.Op, all bool) {
	ours, all := ownedAddresses(w, have, Options{}), true
	for addr, bound := range have.Addresses {
		own, some := ownBinding(ours, addr, bound)
		if some {
			ops = append(ops, kernel.Op{Verb: kernel.Delete, Object: kernel.BoundAddress{Addr: addr, Binding: own}})
		}
		all = all && some && own == bound
	}
	return ops, all
}

func removeServers(w *Target, have *kernel.State) []kernel.Op {
	var ops []kernel.Op
	for key, server := range have.Servers {
		if recorded(w, have, key, Options{}) {
			ops = append(ops, kernel.Op{Verb: kernel.Delete, Object: server.Server})
		}
	}
	return ops
}

func removeRules(w *Target, have *kernel.State) []kernel.Op {
	var ops []kernel.Op
	for _, rules := range w.Base().Rulesets {
		if view := have.Rules[rules.Family]; len(view.Chains)+len(view.Jumps) > 0 {
			ops = append(ops, kernel.Op{Verb: kernel.Delete, Object: rules})
		}
	}
	return ops
}

func removeSets(w *Target, have *kernel.State) (sets, ledgers []kernel.Op) {
	names := slices.Collect(maps.Values(w.Base().Ledger))
	for name, set := range have.Sets {
		op := kernel.Op{Verb: kernel.Delete, Object: set}
		if slices.Contains(names, name) {
			ledgers = append(ledgers, op)
			continue
		}
		sets = append(sets, op)
	}
	return sets, ledgers
}
