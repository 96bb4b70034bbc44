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
	// Families are those in which the bridge has an address: it is the gateway of what is connected to it.
	Families []inet.Family
	// Filtered are the families in which netfilter sees the packets between its ports.
	Filtered map[inet.Family]bool
}

// BridgeFilter returns the sysctl that shows netfilter the packets between the ports of every bridge. It comes with the module
// br_netfilter.
func BridgeFilter(f inet.Family) string {
	if f == inet.IPv6 {
		return "net/bridge/bridge-nf-call-ip6tables"
	}
	return "net/bridge/bridge-nf-call-iptables"
}

// FilterBridges is what an operator runs on the host if netfilter does not see the packets between the ports of a bridge.
func FilterBridges(f inet.Family) string {
	name := "iptables"
	if f == inet.IPv6 {
		name = "ip6tables"
	}
	return fmt.Sprintf("modprobe br_netfilter && sysctl -w net.bridge.bridge-nf-call-%s=1", name)
}
