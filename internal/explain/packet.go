package explain

import (
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// packet is the first one of a connection, as far as it is known.
type packet struct {
	from     netip.Addr // invalid: any client
	to       netip.AddrPort
	protocol inet.Protocol
	// sent says that this node sends it, and is no router for it.
	sent bool
	mark uint32
	// in and out are interfaces; empty where they are not known.
	in, out string
	// arrivalAsked says that a rule asked for in.
	arrivalAsked bool
	// tracking is what connection tracking says of it.
	tracking string
}

func (p *packet) family() inet.Family { return inet.FamilyOf(p.to.Addr()) }

// What connection tracking may say.
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

// wayOut is the interface by which packets to an endpoint leave.
func (k *Kernel) wayOut(a netip.Addr) string {
	if k.isLocal(a) {
		return loopback
	}
	return k.Via[a]
}

// isLocal says whether the kernel takes packets to the address for its own.
func (k *Kernel) isLocal(a netip.Addr) bool { return a.IsLoopback() || k.isVirtual(a) || k.isNode(a) }

func (k *Kernel) isVirtual(a netip.Addr) bool {
	_, bound := k.Addresses[a]
	return bound
}

func (k *Kernel) isNode(a netip.Addr) bool { return slices.Contains(k.NodeAddresses, a) }

// element is what a set of the type is asked for by "dst" or "dst,dst".
func (p *packet) element(t kernel.SetType) kernel.Element {
	if t == kernel.HashIP {
		return kernel.Element{Addr: p.to.Addr()}
	}
	return kernel.Element{Addr: p.to.Addr(), Protocol: p.protocol, Port: p.to.Port()}
}
