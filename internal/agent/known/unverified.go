package known

import (
	"maps"
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Unverified are the addresses at which an operation failed since the kernel was last read. A failed operation may have taken effect
// (its reply was lost), so nothing may build on what is remembered of such an address: a virtual server that is not known would outlive
// its ledger entry, or an address its virtual server. Everything at these addresses waits for the next full read. Other addresses do
// not wait, and neither does what was skipped: a skipped operation certainly had no effect.
type Unverified map[netip.Addr]struct{}

// addOp adds the address of a failed operation. Sets, rules and the device have none: what builds on them is skipped.
func (u Unverified) addOp(op kernel.Op) {
	switch o := op.Object.(type) {
	case kernel.Server:
		u[o.Key.Addr.Addr()] = struct{}{}
	case kernel.ServerDestination:
		u[o.Server.Addr.Addr()] = struct{}{}
	case kernel.Member:
		u[o.Element.Addr] = struct{}{}
	case kernel.BoundAddress:
		u[o.Addr] = struct{}{}
	}
}

// Add adds the addresses of touched objects that could not be compared with the kernel.
func (u Unverified) Add(touched *want.Touched) {
	maps.Copy(u, touched.Addresses)
	for key := range touched.Servers {
		u[key.Addr.Addr()] = struct{}{}
	}
	for m := range touched.Members {
		u[m.Element.Addr] = struct{}{}
	}
}

// Has reports whether what is remembered of an address may not be relied on.
func (u Unverified) Has(addr netip.Addr) bool {
	_, ok := u[addr]
	return ok
}

// Concerns reports whether a touched object is at an unverified address.
func (u Unverified) Concerns(touched *want.Touched) bool {
	for addr := range touched.Addresses {
		if u.Has(addr) {
			return true
		}
	}
	for m := range touched.Members {
		if u.Has(m.Element.Addr) {
			return true
		}
	}
	return false
}

// Withhold removes the objects at unverified addresses from those that are compared and written.
func (u Unverified) Withhold(touched *want.Touched) {
	if len(u) == 0 {
		return
	}
	maps.DeleteFunc(touched.Addresses, func(a netip.Addr, _ struct{}) bool { return u.Has(a) })
	maps.DeleteFunc(touched.Servers, func(k kernel.ServerKey, _ struct{}) bool { return u.Has(k.Addr.Addr()) })
	maps.DeleteFunc(touched.Members, func(m kernel.Member, _ struct{}) bool { return u.Has(m.Element.Addr) })
}
