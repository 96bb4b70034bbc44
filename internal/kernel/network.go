package kernel

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// Node contains the addresses of the node's own interfaces, sorted, and what its networks use.
type Node struct {
	Addresses []netip.Addr
	Network   Network
}

// Equal reports whether both have the same addresses and networks.
func (n *Node) Equal(o *Node) bool {
	return slices.Equal(n.Addresses, o.Addresses) && maps.Equal(n.Network, o.Network)
}

// Network maps the gateways and reserved addresses of this node's networks, and its nameservers, to their roles. If kube-ipvs0 had such an
// address, the address would become local, and the node would lose its routes through the address, or its DNS.
type Network map[netip.Addr]NetworkRole

// NetworkRole is the role of an address in the node's networks.
type NetworkRole struct {
	Kind NetworkRoleKind
	// Subnet is the address's subnet; invalid for a gateway or nameserver.
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
	Nameserver
)

// Subnets lists the networks that this node's interfaces are in.
func (n Network) Subnets() []netip.Prefix {
	var subnets []netip.Prefix
	for _, role := range n {
		if role.Subnet.IsValid() && !role.Subnet.IsSingleIP() && !slices.Contains(subnets, role.Subnet) {
			subnets = append(subnets, role.Subnet)
		}
	}
	slices.SortFunc(subnets, netip.Prefix.Compare)
	return subnets
}

// AddSubnet adds the reserved addresses of the network that an interface address is in. A network of at most two addresses has none.
func (n Network) AddSubnet(address netip.Prefix) {
	subnet := address.Masked()
	if subnet.Addr().BitLen()-subnet.Bits() < 2 {
		return
	}
	role := NetworkRole{Kind: Broadcast, Subnet: subnet}
	if n[subnet.Addr()].Kind == Broadcast {
		n[subnet.Addr()] = role
	} else {
		n[subnet.Addr()] = NetworkRole{Kind: SubnetAddress, Subnet: subnet}
	}
	if subnet.Addr().Is4() {
		n[lastOf(subnet)] = role
	}
}

func lastOf(subnet netip.Prefix) netip.Addr {
	b := subnet.Addr().As4()
	for bit := subnet.Bits(); bit < 32; bit++ {
		b[bit/8] |= 1 << (7 - bit%8)
	}
	return netip.AddrFrom4(b)
}

// String completes "the address is ...".
func (r NetworkRole) String() string {
	switch r.Kind {
	case Gateway:
		return "this node's gateway"
	case Broadcast:
		return fmt.Sprintf("the broadcast address of this node's network %s", r.Subnet)
	case SubnetAddress:
		return fmt.Sprintf("the reserved first address of this node's network %s", r.Subnet)
	case Nameserver:
		return "a nameserver of this node"
	}
	return fmt.Sprintf("role(%d)", uint8(r.Kind))
}
