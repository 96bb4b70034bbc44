package explain

import (
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// packet holds the known properties of the traced packet.
type packet struct {
	from     netip.Addr // invalid: any client
	to       netip.AddrPort
	protocol inet.Protocol
	// sent is true if this node itself sends the packet.
	sent bool
	mark uint32
	// in and out are interfaces; empty if they are unknown.
	in, out string
	// arrivalAsked is true if a rule matched in.
	arrivalAsked bool
	// tracking is its connection tracking state.
	tracking string
}

func (p *packet) family() inet.Family { return inet.FamilyOf(p.to.Addr()) }

// Connection tracking states.
const (
	trackedNew  = "NEW"
	established = "ESTABLISHED"
	untracked   = "UNTRACKED"
)

func newPacket(k *Kernel, q Question) *packet {
	p := &packet{from: q.From, to: q.To.Addr, protocol: q.To.Protocol, tracking: trackedNew, in: q.Interface}
	switch {
	case !q.From.IsValid():
	case k.isLocal(q.From):
		p.sent, p.in, p.out = true, "", loopback
	case p.in == "":
		p.in = k.Via[q.From]
	}
	return p
}

// loopback is the interface of the node's packets to itself.
const loopback = "lo"

// outInterface is the outgoing interface of packets to an endpoint.
func (k *Kernel) outInterface(a netip.Addr) string {
	if k.isLocal(a) {
		return loopback
	}
	return k.Via[a]
}

// isLocal reports whether the kernel delivers packets to the address locally.
func (k *Kernel) isLocal(a netip.Addr) bool { return a.IsLoopback() || k.isVirtual(a) || k.isNode(a) }

func (k *Kernel) isVirtual(a netip.Addr) bool {
	_, bound := k.Addresses[a]
	return bound
}

func (k *Kernel) isNode(a netip.Addr) bool { return slices.Contains(k.NodeAddresses, a) }

// element returns the entry that a set match with "dst" or "dst,dst" looks up in a set of the type.
func (p *packet) element(t kernel.SetType) kernel.Element {
	if t == kernel.HashIP {
		return kernel.Element{Addr: p.to.Addr()}
	}
	return kernel.Element{Addr: p.to.Addr(), Protocol: p.protocol, Port: p.to.Port()}
}
