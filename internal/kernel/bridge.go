package kernel

import (
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

// Bridge is a bridge of the node.
type Bridge struct {
	Name string
	// Containers is true if a port leads to another network namespace.
	Containers bool
	// Families lists the families in which the bridge has an address and is therefore a gateway.
	Families []inet.Family
	// Filtered lists the families in which netfilter sees packets between the bridge's ports.
	Filtered map[inet.Family]bool
}

// BridgeFilter returns the sysctl that makes netfilter see the packets between bridge ports. The module br_netfilter provides it.
func BridgeFilter(f inet.Family) string {
	if f == inet.IPv6 {
		return "net/bridge/bridge-nf-call-ip6tables"
	}
	return "net/bridge/bridge-nf-call-iptables"
}

// FilterBridges returns the command to run on the host if netfilter does not see packets between a bridge's ports.
func FilterBridges(f inet.Family) string {
	name := "iptables"
	if f == inet.IPv6 {
		name = "ip6tables"
	}
	return fmt.Sprintf("modprobe br_netfilter && sysctl -w net.bridge.bridge-nf-call-%s=1", name)
}
