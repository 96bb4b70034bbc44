package kernel

import (
	"fmt"
	"net/netip"
)

// Binding is how kube-ipvs0 makes an address local to the node.
type Binding uint8

// The bindings. An address has both while the agent changes from one to the other.
const (
	// OnDevice is an address of kube-ipvs0.
	OnDevice Binding = iota
	// Routed is a local route to kube-ipvs0 with the agent's protocol number. The kernel adds IPv4 addresses in quadratic time, and routes in
	// linear time. IPv6 addresses are never routed.
	Routed
	BoundTwice
)

// RouteProtocol is the protocol number of the agent's local routes, which shows whose they are. Neither linux/rtnetlink.h nor iproute2's
// rt_protos lists it.
const RouteProtocol = 117

// BoundAddress is an address that kube-ipvs0 makes local. Verbs: Create, Delete.
type BoundAddress struct {
	Addr    netip.Addr
	Binding Binding
	// Moved is true if Create must remove the other binding once this one exists.
	Moved bool
}

func (BoundAddress) kind() Kind { return KindAddress }

func (a BoundAddress) String() string {
	if a.Binding == Routed {
		return fmt.Sprintf("local %s/%d dev %s table local proto %d", a.Addr, a.Addr.BitLen(), Device, RouteProtocol)
	}
	return fmt.Sprintf("%s/%d dev %s", a.Addr, a.Addr.BitLen(), Device)
}

// Listed returns the address or the route after the command that lists it.
func (a BoundAddress) Listed() string {
	if a.Binding == Routed {
		return "ip route " + a.String()
	}
	return "ip addr " + a.String()
}

// command returns the commands that have the same effect.
func (a BoundAddress) command(verb Verb) string {
	single := func(verb Verb, binding Binding) string {
		object, change := "addr", "add"
		if binding == Routed {
			object = "route"
		}
		if verb == Delete {
			change = "del"
		}
		return fmt.Sprintf("ip %s %s %s", object, change, BoundAddress{Addr: a.Addr, Binding: binding})
	}
	switch {
	case a.Binding == BoundTwice:
		return single(verb, OnDevice) + " && " + single(verb, Routed)
	case a.Moved:
		return single(verb, a.Binding) + " && " + single(Delete, a.Binding.other())
	}
	return single(verb, a.Binding)
}

// Includes reports whether an address with this binding also has the other one.
func (b Binding) Includes(o Binding) bool { return b == o || b == BoundTwice }

func (b Binding) other() Binding {
	if b == OnDevice {
		return Routed
	}
	return OnDevice
}

// Removals returns the bindings that the operation removes.
func (a BoundAddress) Removals(verb Verb) []Binding {
	switch {
	case verb == Create && a.Moved:
		return []Binding{a.Binding.other()}
	case verb == Create:
		return nil
	case a.Binding == BoundTwice:
		return []Binding{OnDevice, Routed}
	}
	return []Binding{a.Binding}
}

// Advance changes the bindings as a successful operation does.
func (a BoundAddress) Advance(all map[netip.Addr]Binding, verb Verb) {
	if verb == Create {
		Bind(all, a.Addr, a.Binding)
	}
	for _, b := range a.Removals(verb) {
		Unbind(all, a.Addr, b)
	}
}

// Bind adds a binding of an address, and reports whether it was missing.
func Bind(all map[netip.Addr]Binding, addr netip.Addr, b Binding) bool {
	now, exists := all[addr]
	switch {
	case !exists:
		all[addr] = b
	case now.Includes(b):
		return false
	default:
		all[addr] = BoundTwice
	}
	return true
}

// Unbind removes a binding of an address, and reports whether it existed.
func Unbind(all map[netip.Addr]Binding, addr netip.Addr, b Binding) bool {
	now, exists := all[addr]
	switch {
	case !exists || !now.Includes(b):
		return false
	case now == BoundTwice:
		all[addr] = b.other()
	default:
		delete(all, addr)
	}
	return true
}
