package kernel

import (
	"fmt"
	"net/netip"
)

// Network maps addresses that this node's networks use themselves to their roles. On kube-ipvs0 they would become local, and the node would
// lose its routes through them.
type Network map[netip.Addr]NetworkRole

// NetworkRole is the role of an address in the node's networks.
type NetworkRole struct {
	Kind NetworkRoleKind
	// Subnet is the address's subnet; invalid for a gateway.
	Subnet netip.Prefix
}

// NetworkRoleKind is a kind of NetworkRole.
type NetworkRoleKind uint8

// The kinds of roles.
const (
	// Gateway is the next hop of a route.
	Gateway NetworkRoleKind = iota + 1
	// Broadcast reaches every host of a subnet. IPVS rejects it as a destination.
	Broadcast
	// SubnetAddress is the first address of a subnet: the subnet's own address in IPv4, the subnet-router anycast address in IPv6.
	SubnetAddress
)

// String completes "the address is ...".
func (r NetworkRole) String() string {
	switch r.Kind {
	case Gateway:
		return "this node's gateway"
	case Broadcast:
		return fmt.Sprintf("the broadcast address of this node's network %s", r.Subnet)
	case SubnetAddress:
		return fmt.Sprintf("the reserved first address of this node's network %s", r.Subnet)
	}
	return fmt.Sprintf("role(%d)", uint8(r.Kind))
}
