package diff

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// What is ours (I5): chains, sets and the device by name; a virtual server by its owner record; an address on kube-ipvs0 by the ledger or
// the set of virtual addresses, or all of them (OnlyUser). Everything else is foreign and does not change.

// Foreign lists the given keys of existing virtual servers that are not ours and must not be adopted.
func Foreign(w *want.State, have *kernel.State, keys []kernel.ServerKey, opt Options) []kernel.ServerKey {
	var foreign []kernel.ServerKey
	for _, key := range keys {
		observed, exists := have.Servers[key]
		if exists && !recorded(w, have, key, opt) && !(opt.mayAdopt(key) && adoptable(w, have, key, observed)) {
			foreign = append(foreign, key)
		}
	}
	slices.SortFunc(foreign, kernel.ServerKey.Compare)
	return foreign
}

// Freed lists the wanted virtual servers that were not written because of a foreign one that has since been deleted.
func Freed(w *want.State, have *kernel.State) []kernel.ServerKey {
	var freed []kernel.ServerKey
	for key := range w.Foreign() {
		if _, exists := have.Servers[key]; !exists {
			freed = append(freed, key)
		}
	}
	slices.SortFunc(freed, kernel.ServerKey.Compare)
	return freed
}

// Ours lists the virtual servers in the kernel that are ours: the wanted ones, and those in the ledger that are no longer wanted. The
// results of Foreign must be set in the wanted state.
func Ours(w *want.State, have *kernel.State, opt Options) map[kernel.ServerKey]struct{} {
	ours := map[kernel.ServerKey]struct{}{}
	for key := range have.Servers {
		if w.Servers[key] != nil || wanted(w, key) == nil && recorded(w, have, key, opt) {
			ours[key] = struct{}{}
		}
	}
	return ours
}

// Claims lists the given keys of virtual servers that we are about to create, or that are not known to be ours. Another program may have
// created one there, so they must be looked up before the first write.
func Claims(w *want.State, have *kernel.State, keys iter.Seq[kernel.ServerKey], opt Options) []kernel.ServerKey {
	var claims []kernel.ServerKey
	for key := range keys {
		_, exists := have.Servers[key]
		if w.Servers[key] != nil && !(exists && recorded(w, have, key, opt)) {
			claims = append(claims, key)
		}
	}
	slices.SortFunc(claims, kernel.ServerKey.Compare)
	return claims
}

// Missing lists the virtual servers that a full read does not show although they should exist, ours or foreign. An IPVS dump can skip
// entries while another program writes, so only a lookup shows whether they exist.
func Missing(w *want.State, have *kernel.State, opt Options) []kernel.ServerKey {
	var missing []kernel.ServerKey
	for key := range w.Servers {
		if _, exists := have.Servers[key]; !exists && recorded(w, have, key, opt) {
			missing = append(missing, key)
		}
	}
	for key := range w.Foreign() {
		if _, exists := have.Servers[key]; !exists {
			missing = append(missing, key)
		}
	}
	slices.SortFunc(missing, kernel.ServerKey.Compare)
	return missing
}

// recorded reports whether a virtual server is known to be ours.
func recorded(w *want.State, have *kernel.State, key kernel.ServerKey, opt Options) bool {
	if !opt.mayAdopt(key) {
		return false
	}
	entry := want.LedgerEntry(w.Base.Ledger, key)
	return have.HasMember(entry) && entry != want.Seal(w.Base.Ledger, key.Family()) || opt.Known != nil && opt.Known(key)
}

// adoptable reports whether a wanted virtual server without an owner record may be adopted. With an intact ledger, it must be on an address
// on kube-ipvs0 and have only this Service's endpoints. If the ledger is lost, or was never written because kube-proxy ran here before, one
// of the two suffices. If kube-ipvs0 also has other addresses, kube-proxy left them. Then a virtual server may also be adopted if it sends
// no connections to other endpoints, such as kube-proxy's at the node ports of Services without endpoints.
func adoptable(w *want.State, have *kernel.State, key kernel.ServerKey, observed kernel.ObservedServer) bool {
	_, bound := have.Addresses[key.Addr.Addr()]
	lost := !have.HasMember(want.Seal(w.Base.Ledger, key.Family()))
	same := sameEndpoints(wanted(w, key), observed)
	abandoned := lost && len(have.Addresses) > 0 && idleExcept(wanted(w, key), observed)
	return bound && (lost || same) || lost && same || abandoned
}

func wanted(w *want.State, key kernel.ServerKey) *want.Server {
	if s := w.Servers[key]; s != nil {
		return s
	}
	return w.Foreign()[key]
}

// idleExcept reports whether only this Service's endpoints get connections.
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

// Leftovers are unwanted objects on our device without an owner record. They are reported, never deleted.
type Leftovers struct {
	Servers   []kernel.ServerKey
	Addresses []netip.Addr
}

// FindLeftovers lists the leftovers.
func FindLeftovers(w *want.State, have *kernel.State, opt Options) Leftovers {
	var l Leftovers
	for addr := range have.Addresses {
		if !w.HasAddress(addr) {
			l.Addresses = append(l.Addresses, addr)
		}
	}
	if len(l.Addresses) > 0 { // with many Services, listing our addresses takes long
		ours := ownedAddresses(w, have, opt)
		l.Addresses = slices.DeleteFunc(l.Addresses, func(addr netip.Addr) bool {
			_, ok := ours[addr]
			return ok
		})
	}
	for key := range have.Servers {
		_, bound := have.Addresses[key.Addr.Addr()]
		if bound && wanted(w, key) == nil && !recorded(w, have, key, opt) {
			l.Servers = append(l.Servers, key)
		}
	}
	slices.SortFunc(l.Servers, kernel.ServerKey.Compare)
	slices.SortFunc(l.Addresses, netip.Addr.Compare)
	return l
}

// ownedAddresses lists the addresses that are ours according to the ledger or the set of virtual addresses. It includes the node's own
// addresses at which a port is served, because the ledger will have them: they must not be on kube-ipvs0. Where nothing else uses the device,
// it includes all addresses if the ledger is lost, for instance with a flush of nftables while no agent ran.
func ownedAddresses(w *want.State, have *kernel.State, opt Options) map[netip.Addr]struct{} {
	ours := map[netip.Addr]struct{}{}
	for _, set := range w.Base.Sets {
		if !set.VIPs && set.Name != w.Base.Ledger[set.Family] {
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
		if w.Base.OnlyUser && !have.HasMember(want.Seal(w.Base.Ledger, inet.FamilyOf(addr))) {
			ours[addr] = struct{}{}
		}
	}
	return ours
}

// listedAddress reports whether a set of virtual addresses has the address. The set gets every address before it is bound and loses it after
// it is released, so a listed address is ours unless another program writes the set.
func listedAddress(w *want.State, have *kernel.State, addr netip.Addr) bool {
	return slices.ContainsFunc(w.Base.Sets, func(set want.Set) bool {
		return set.VIPs && have.HasMember(kernel.Member{Set: set.Name, Element: kernel.Element{Addr: addr}})
	})
}
