package explain

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

type packet struct {
	family   inet.Family
	from     netip.Addr // invalid for any client
	port     uint16     // of the sender
	to       netip.AddrPort
	protocol inet.Protocol
	// sent is true if this node itself sends the packet.
	sent bool
	mark uint32
	// markUnknown are the bits of the mark that explain cannot evaluate. ctMark is the mark of the connection.
	markUnknown, ctMark, ctMarkUnknown uint32
	// in and out are the interfaces; empty if unknown.
	in, out string
	// arrivalAsked is true if a rule tests the incoming interface.
	arrivalAsked bool
	// tracking is the connection tracking state.
	tracking string
	// reply is true for an endpoint's reply. translated is true if nftables has changed the connection's destination.
	reply, translated bool
	// toNode is true for the reply to a masqueraded connection: its destination is an address of this node until the kernel translates it.
	toNode bool
	// original contains the addresses of the connection's first packet.
	original ends
	phase    phase
	// attached is true once connection tracking has processed the packet.
	attached bool
	zone     zone
	// wanted are the bits of the mark that the agent's rules have set. marker is the last rule that has changed the mark.
	wanted uint32
	marker string
}

type ends struct {
	from netip.Addr
	port uint16
	to   netip.AddrPort
}

// Connection tracking states.
const (
	trackedNew  = "NEW"
	established = "ESTABLISHED"
	untracked   = "UNTRACKED"
	invalid     = "INVALID"
)

// ephemeralPort is the client's port if the question names none.
const ephemeralPort = 49_151

func newPacket(k *Kernel, q Question) *packet {
	p := &packet{
		family: q.To.Family(), from: q.From, port: cmp.Or(q.FromPort, ephemeralPort), to: q.To.Addr, protocol: q.To.Protocol, tracking: trackedNew,
		in: q.Interface,
	}
	p.original = ends{p.from, p.port, p.to}
	switch {
	case !q.From.IsValid():
	case k.IsLocal(q.From):
		p.sent, p.in, p.out = true, "", loopback
	case p.in == "":
		p.in = k.Routes[q.From].Interface
	}
	return p
}

// answer returns the reply of the endpoint that the packet has reached, as it arrives on this node.
func (p *packet) answer(k *Kernel, masqueraded bool) *packet {
	local := k.IsLocal(p.to.Addr())
	back := &packet{
		family: p.family, from: p.to.Addr(), port: p.to.Port(), to: netip.AddrPortFrom(p.original.from, p.original.port), protocol: p.protocol,
		ctMark: p.ctMark, ctMarkUnknown: p.ctMarkUnknown, in: p.out, out: p.in, tracking: established, reply: true, sent: local,
		translated: p.translated, original: p.original, phase: p.phase,
	}
	switch {
	case p.tracking == untracked:
		back.tracking = untracked
	case masqueraded && !p.sent: // the node's address, until the kernel translates it
		back.to = netip.AddrPortFrom(netip.Addr{}, p.original.port)
	}
	if local {
		back.in = ""
	}
	return back
}

const loopback = "lo"

func (k *Kernel) outInterface(a netip.Addr) string {
	if k.IsLocal(a) {
		return loopback
	}
	return k.Routes[a].Interface
}

// IsLocal reports whether the kernel delivers packets to the address locally.
func (k *Kernel) IsLocal(a netip.Addr) bool { return a.IsLoopback() || k.isVirtual(a) || k.isNode(a) }

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
