package kernel

import "net/netip"

// Pod is an address of a pod on this node. Interface leads to the pod: it is the node's end of the pod's veth pair, or a bridge.
type Pod struct {
	Addr      netip.Addr
	Interface string
}
