package diff

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// What is ours (I5): chains, sets and the device by name; a virtual server by its entry in the ledger; an address on
// kube-ipvs0 by the ledger or the set of virtual addresses. The rest is somebody else's and stays as it is.

// Foreign lists those of the given keys where we want a virtual server and another one stands that is not ours.
func Foreign(w *want.State, have *kernel.State, keys []kernel.ServerKey, opt Options) []kernel.ServerKey {
	var foreign []kernel.ServerKey
	for _, key := range keys {
		observed, stands := have.Servers[key]
		if stands && !recorded(w, have, key, opt) && !(opt.mayAdopt(key) && adoptable(w, have, key, observed)) {
			foreign = append(foreign, key)
		}
	}
	slices.SortFunc(foreign, kernel.ServerKey.Compare)
	return foreign
}

// Freed lists the servers we left alone because of a foreign one that is gone.
func Freed(w *want.State, have *kernel.State) []kernel.ServerKey {
	var freed []kernel.ServerKey
	for key := range w.Foreign() {
		if _, stands := have.Servers[key]; !stands {
			freed = append(freed, key)
		}
	}
	slices.SortFunc(freed, kernel.ServerKey.Compare)
	return freed
}

// Ours lists the virtual servers that stand and are ours, after Foreign has been told to the wanted state: those that we
// write to, and those that are recorded though nothing wants them any more.
func Ours(w *want.State, have *kernel.State, opt Options) map[kernel.ServerKey]struct{} {
	ours := map[kernel.ServerKey]struct{}{}
	for key := range have.Servers {
		if w.Servers[key] != nil || wanted(w, key) == nil && recorded(w, have, key, opt) {
			ours[key] = struct{}{}
		}
	}
	return ours
}

// Claims lists those of the given keys whose virtual server we are about to make, or do not know to be ours. Somebody else's
// may stand there by now: they must be looked up before the first write.
func Claims(w *want.State, have *kernel.State, keys iter.Seq[kernel.ServerKey], opt Options) []kernel.ServerKey {
	var claims []kernel.ServerKey
	for key := range keys {
		_, stands := have.Servers[key]
		if w.Servers[key] != nil && !(stands && recorded(w, have, key, opt)) {
			claims = append(claims, key)
		}
	}
	slices.SortFunc(claims, kernel.ServerKey.Compare)
	return claims
}

// Missing lists the virtual servers that a complete reading does not show though one of ours or of others should be there. A
// dump of IPVS overlooks entries while somebody else writes, so only looking them up tells whether they are gone.
func Missing(w *want.State, have *kernel.State, opt Options) []kernel.ServerKey {
	var missing []kernel.ServerKey
	for key := range w.Servers {
		if _, stands := have.Servers[key]; !stands && recorded(w, have, key, opt) {
			missing = append(missing, key)
		}
	}
	for key := range w.Foreign() {
		if _, stands := have.Servers[key]; !stands {
			missing = append(missing, key)
		}
	}
	slices.SortFunc(missing, kernel.ServerKey.Compare)
	return missing
}

// recorded says whether a virtual server is known to be ours.
func recorded(w *want.State, have *kernel.State, key kernel.ServerKey, opt Options) bool {
	if !opt.mayAdopt(key) {
		return false
	}
	entry := want.LedgerEntry(w.Base.Ledger, key)
	return have.HasMember(entry) && entry != want.Seal(w.Base.Ledger, key.Family()) || opt.Known != nil && opt.Known(key)
}

// adoptable says whether a wanted virtual server that the ledger does not know may be taken over. With the ledger intact
// only one that already is what we want, on an address of ours. With the ledger lost (or never written: kube-proxy ran here
// before), also one on an address of ours, or one that sends to this Service's endpoints and nowhere else. Where somebody has
// left addresses on kube-ipvs0 besides, it was kube-proxy: then also one that sends nobody anywhere any more, as kube-proxy has at
// the node ports of Services without endpoints.
func adoptable(w *want.State, have *kernel.State, key kernel.ServerKey, observed kernel.ObservedServer) bool {
	_, bound := have.Addresses[key.Addr.Addr()]
	lost := !have.HasMember(want.Seal(w.Base.Ledger, key.Family()))
	same := sameEndpoints(wanted(w, key), observed)
	abandoned := lost && len(have.Addresses) > 0 && idleBut(wanted(w, key), observed)
	return bound && (lost || same) || lost && same || abandoned
}

func wanted(w *want.State, key kernel.ServerKey) *want.Server {
	if s := w.Servers[key]; s != nil {
		return s
	}
	return w.Foreign()[key]
}

// idleBut says whether all destinations other than this Service's endpoints get no connections.
func idleBut(w *want.Server, observed kernel.ObservedServer) bool {
	return w != nil && !slices.ContainsFunc(observed.Destinations, func(d kernel.ObservedDestination) bool {
		return d.Forwarding != kernel.ForwardMasq || d.Weight > 0 && !contains(w.Destinations, d.Destination)
	})
}

func sameEndpoints(w *want.Server, observed kernel.ObservedServer) bool {
	if w == nil || len(observed.Destinations) == 0 {
		return false
	}
	for _, d := range observed.Destinations {
		if d.Forwarding != kernel.ForwardMasq || !contains(w.Destinations, d.Destination) {
			return false
		}
	}
	return true
}

// Leftovers is what stands on our device or in our place, is not wanted, and is not known to be ours: reported, never deleted.
type Leftovers struct {
	Servers   []kernel.ServerKey
	Addresses []netip.Addr
}

// FindLeftovers lists them.
func FindLeftovers(w *want.State, have *kernel.State, opt Options) Leftovers {
	var l Leftovers
	ours := ownedAddresses(w, have, opt)
	for addr := range have.Addresses {
		if _, ok := ours[addr]; !ok && !w.HasAddress(addr) {
			l.Addresses = append(l.Addresses, addr)
		}
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

// ownedAddresses lists the addresses that the ledger or the set of virtual addresses says are ours. The ledger will say so of
// every address at which we serve a port; where the node has that address itself, it is out of place on kube-ipvs0.
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
	return ours
}

// listedAddress says whether a set of virtual addresses has the address: it gets every address before it is bound and loses
// it after, so this is enough to know ours while nobody else writes.
func listedAddress(w *want.State, have *kernel.State, addr netip.Addr) bool {
	return slices.ContainsFunc(w.Base.Sets, func(set want.Set) bool {
		return set.VIPs && have.HasMember(kernel.Member{Set: set.Name, Element: kernel.Element{Addr: addr}})
	})
}
