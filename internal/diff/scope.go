package diff

import (
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// This file decides which objects are ours (I5). Chains, sets and the device are ours if they have our names. A virtual server is ours if
// it has an owner record. An address on kube-ipvs0 is ours if it is in the ledger or the set of virtual addresses. If only the agent uses
// kube-ipvs0, all its addresses can be ours. Local routes with our protocol number are ours. Everything else is foreign and stays unchanged.

// foreign lists the given keys of existing virtual servers that are not ours and must not be adopted.
func foreign(w *Target, have *kernel.State, keys []kernel.ServerKey, opt Options) []kernel.ServerKey {
	var found []kernel.ServerKey
	for _, key := range keys {
		observed, exists := have.Servers[key]
		if exists && !recorded(w, have, key, opt) && !(opt.mayAdopt(key) && adoptable(w, have, key, observed)) {
			found = append(found, key)
		}
	}
	slices.SortFunc(found, kernel.ServerKey.Compare)
	return found
}

// ours lists our virtual servers in the kernel. Some are in the ledger but no longer wanted.
func ours(w *Target, have *kernel.State, opt Options) map[kernel.ServerKey]struct{} {
	own := map[kernel.ServerKey]struct{}{}
	for key := range have.Servers {
		if w.Server(key) != nil || wanted(w, key) == nil && recorded(w, have, key, opt) {
			own[key] = struct{}{}
		}
	}
	return own
}

// claims lists the touched virtual servers that we are about to create, or that are not known to be ours. Another program may have created them,
// so they must be looked up before the first write.
func claims(w *Target, have *kernel.State, touched *want.Touched, opt Options) []kernel.ServerKey {
	var keys []kernel.ServerKey
	for key := range touched.Servers {
		_, exists := have.Servers[key]
		if w.Server(key) != nil && !(exists && recorded(w, have, key, opt)) {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, kernel.ServerKey.Compare)
	return keys
}

// missing lists the virtual servers that should exist, ours or foreign, but are missing from a full read. An IPVS dump can skip
// entries while another program writes, so only a lookup shows whether they exist.
func missing(w *Target, have *kernel.State, opt Options) []kernel.ServerKey {
	var keys []kernel.ServerKey
	for key := range w.Servers {
		if _, exists := have.Servers[key]; !exists && recorded(w, have, key, opt) {
			keys = append(keys, key)
		}
	}
	for key := range w.Foreign() {
		if _, exists := have.Servers[key]; !exists {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, kernel.ServerKey.Compare)
	return keys
}

func recorded(w *Target, have *kernel.State, key kernel.ServerKey, opt Options) bool {
	if !opt.mayAdopt(key) {
		return false
	}
	entry := want.LedgerEntry(w.Base().Ledger, key)
	return have.HasMember(entry) && entry != want.Seal(w.Base().Ledger, key.Family()) || opt.Known != nil && opt.Known(key)
}

// adoptable reports whether a wanted virtual server without an owner record may be adopted. If the ledger is intact, the virtual server's
// address must be on kube-ipvs0 and all its destinations must be this Service's endpoints. If the ledger is lost, or was never written
// because kube-proxy ran here before, one of these conditions suffices. If kube-proxy left other addresses on kube-ipvs0, a virtual
// server may also be adopted if it sends no connections to other endpoints, such as kube-proxy's virtual servers at the node ports of
// Services without endpoints.
func adoptable(w *Target, have *kernel.State, key kernel.ServerKey, observed kernel.ObservedServer) bool {
	_, bound := have.Addresses[key.Addr.Addr()]
	lost := !have.HasMember(want.Seal(w.Base().Ledger, key.Family()))
	same := sameEndpoints(wanted(w, key), observed)
	abandoned := lost && len(have.Addresses) > 0 && idleExcept(wanted(w, key), observed)
	return bound && (lost || same) || lost && same || abandoned
}

func wanted(w *Target, key kernel.ServerKey) *want.Server {
	if s := w.Server(key); s != nil {
		return s
	}
	return w.Foreign()[key]
}

// idleExcept reports whether only this Service's endpoints receive connections.
func idleExcept(w *want.Server, observed kernel.ObservedServer) bool {
	return w != nil && !slices.ContainsFunc(observed.Destinations, func(d kernel.ObservedDestination) bool {
		return d.Forwarding != kernel.ForwardMasq || d.Weight > 0 && !sends(w, d)
	})
}

func sameEndpoints(w *want.Server, observed kernel.ObservedServer) bool {
	if w == nil || len(observed.Destinations) == 0 {
		return false
	}
	for _, d := range observed.Destinations {
		if d.Forwarding != kernel.ForwardMasq || !sends(w, d) {
			return false
		}
	}
	return true
}

// ownedAddresses lists the addresses that are ours according to the ledger or the set of virtual addresses. It includes the node's own addresses
// with a served port, because they will be in the ledger. These addresses must not be on kube-ipvs0. If nothing else uses the device and the
// ledger is lost, for example by an nftables flush while no agent runs, it includes all addresses. Routes are always ours (see ownBinding).
func ownedAddresses(w *Target, have *kernel.State, opt Options) map[netip.Addr]struct{} {
	ours := map[netip.Addr]struct{}{}
	for _, set := range w.Base().Sets {
		if !set.VIPs && set.Name != w.Base().Ledger[set.Family] {
			continue
		}
		for element := range have.Members[set.Name] {
			if set.VIPs || opt.mayAdopt(keyOf(element)) {
				ours[element.Addr] = struct{}{}
			}
		}
	}
	for key, server := range w.Servers {
		if server.Unbound {
			ours[key.Addr.Addr()] = struct{}{}
		}
	}
	for addr := range have.Addresses {
		if w.Base().OnlyUser && !have.HasMember(want.Seal(w.Base().Ledger, inet.FamilyOf(addr))) {
			ours[addr] = struct{}{}
		}
	}
	return ours
}

// ownBinding returns the part of a bound address that is ours: nothing, a route beside a foreign address of kube-ipvs0, or all of it. ours are
// the owned addresses.
func ownBinding(ours map[netip.Addr]struct{}, addr netip.Addr, bound kernel.Binding) (own kernel.Binding, some bool) {
	if _, listed := ours[addr]; listed {
		return bound, true
	}
	return kernel.Routed, bound.Includes(kernel.Routed)
}

// listedAddress reports whether a set of virtual addresses contains the address. The agent adds an address to the set before it binds the
// address, and removes it after releasing the address. A listed address is therefore ours, unless another program writes the set.
func listedAddress(w *Target, have *kernel.State, addr netip.Addr) bool {
	return slices.ContainsFunc(w.Base().Sets, func(set want.Set) bool {
		return set.VIPs && have.HasMember(kernel.Member{Set: set.Name, Element: kernel.Element{Addr: addr}})
	})
}
