package kernel

import (
	"fmt"
	"net/netip"
)

// Network maps the addresses that this node's networks need to what they are there. Bound to kube-ipvs0 they would become local, and
// the node could no longer reach what is behind them.
type Network map[netip.Addr]NetworkRole

// NetworkRole is what an address is in the node's networks.
type NetworkRole struct {
	Kind NetworkRoleKind
	// Subnet that the address stands for; invalid for a gateway.
	Subnet netip.Prefix
}

// NetworkRoleKind is a kind of NetworkRole.
type NetworkRoleKind uint8

// The kinds of roles.
const (
	// Gateway is the next hop of a route.
	Gateway NetworkRoleKind = iota + 1
	// Broadcast reaches every host of a subnet. IPVS takes no destination with it.
	Broadcast
	// SubnetAddress is the first address of a subnet: its own name in IPv4, any of its routers in IPv6.
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
		return fmt.Sprintf("the first address of this node's network %s, which is no host's", r.Subnet)
	}
	return fmt.Sprintf("role(%d)", uint8(r.Kind))
}
