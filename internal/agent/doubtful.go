package agent

import (
	"maps"
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// doubtful are the addresses at which something failed since the kernel was last read. A failed operation may have taken effect
// all the same (a reply was lost), so what we remember of such an address must not be built on: a server of which we know
// nothing would outlive its entry in the ledger, an address its server. Everything else there waits until all has been read
// again; other addresses do not. (Of what was skipped we know that it was not done.)
type doubtful map[netip.Addr]struct{}

// add notes an operation that failed. Sets, rules and the device have no address: what needs them is skipped.
func (d doubtful) add(op kernel.Op) {
	switch o := op.Object.(type) {
	case kernel.Server:
		d[o.Key.Addr.Addr()] = struct{}{}
	case kernel.ServerDestination:
		d[o.Server.Addr.Addr()] = struct{}{}
	case kernel.Member:
		d[o.Element.Addr] = struct{}{}
	case kernel.BoundAddress:
		d[o.Addr] = struct{}{}
	}
}

// addAll notes what was touched in a pass that could not be planned.
func (d doubtful) addAll(touched *want.Touched) {
	maps.Copy(d, touched.Addresses)
	for key := range touched.Servers {
		d[key.Addr.Addr()] = struct{}{}
	}
	for m := range touched.Members {
		d[m.Element.Addr] = struct{}{}
	}
}

func (d doubtful) has(addr netip.Addr) bool {
	_, ok := d[addr]
	return ok
}

// concerns says whether anything touched is at a doubtful address.
func (d doubtful) concerns(touched *want.Touched) bool {
	for addr := range touched.Addresses {
		if d.has(addr) {
			return true
		}
	}
	for m := range touched.Members {
		if d.has(m.Element.Addr) {
			return true
		}
	}
	return false
}

// remove takes what is at doubtful addresses out of the list.
func (d doubtful) remove(touched *want.Touched) {
	maps.DeleteFunc(touched.Addresses, func(a netip.Addr, _ struct{}) bool { return d.has(a) })
	maps.DeleteFunc(touched.Servers, func(k kernel.ServerKey, _ struct{}) bool { return d.has(k.Addr.Addr()) })
	maps.DeleteFunc(touched.Members, func(m kernel.Member, _ struct{}) bool { return d.has(m.Element.Addr) })
}
