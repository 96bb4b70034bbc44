package explain

import (
	"encoding/binary"
	"math"
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// bits contains bytes of a packet. A bit of data is known if the corresponding bit of known is set.
type bits struct {
	data, known []byte
	// name is nft's name for the field. client is true if the bits are unknown only because the client is unknown.
	name   string
	client bool
	// least and greatest are the limits of a number, in network byte order. swapped is true if data has the other byte order.
	least, greatest []byte
	swapped         bool
}

func exactly(data []byte) bits {
	known := make([]byte, len(data))
	for i := range known {
		known[i] = math.MaxUint8
	}
	return bits{data: data, known: known}
}

func unknownBits(length int) bits {
	return bits{data: make([]byte, length), known: make([]byte, length)}
}

func native32(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// partly returns 4 bytes with some known bits.
func partly(n, known uint32) bits { return bits{data: native32(n & known), known: native32(known)} }

// number returns a number between two limits, in network byte order.
func number(least, greatest uint64, size int) bits {
	const whole = 8
	wide := func(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n)[whole-size:] }
	b := unknownBits(size)
	if least == greatest {
		b = exactly(wide(least))
	}
	b.least, b.greatest = wide(least), wide(greatest)
	return b
}

// The keys of meta, ct and fib, the flags of fib, and the bases of payload, as in linux/netfilter/nf_tables.h.
const (
	metaLength, metaProtocol, metaMark, metaIif, metaOif, metaIifname, metaOifname = 0, 1, 3, 4, 5, 6, 7
	metaSkuid, metaSkgid, metaNfproto, metaL4proto, metaPkttype                    = 10, 11, 15, 16, 19
	metaIbrname, metaObrname                                                       = 17, 18

	ctState, ctDirection, ctStatus, ctMark, ctL3proto, ctProtocol = 0, 1, 2, 3, 7, 10
	ctSrc, ctDst, ctProtoSrc, ctProtoDst, ctPackets, ctZone       = 8, 9, 11, 12, 14, 17
	ctSrcIP, ctDstIP, ctSrcIP6, ctDstIP6                          = 19, 20, 21, 22

	fibOif, fibOifname, fibAddrtype                 = 1, 2, 3
	fibSaddr, fibDaddr, fibIif, fibByOif, fibExists = 1, 2, 8, 16, 32

	baseNetwork, baseTransport = 1, 2

	nameLength   = 16
	registerSize = 4
	// statusDNAT is IPS_DST_NAT.
	statusDNAT = 1 << 5
)

// stateBits are the bits of nft's ct state.
var stateBits = map[string]uint32{invalid: 1, established: 2, "RELATED": 4, trackedNew: 8, untracked: 64}

// field reads a field of the packet at a hook. A rule does not match a packet that lacks the field.
func (p *packet) field(k *Kernel, f kernel.NFTField, hook place) (b bits, has bool) {
	switch f.Kind {
	case kernel.NFTMeta:
		return p.meta(k, f, hook)
	case kernel.NFTPayload:
		return p.payload(f), true
	case kernel.NFTCt:
		return p.ct(f, hook), true
	case kernel.NFTFib:
		return p.fib(k, f), true
	case "socket": // a packet to a Service has no socket: no process on the node listens there
		return bits{}, false
	}
	b = unknownBits(nameLength)
	b.name = f.Kind
	return b, true
}

// metas are the names of meta keys that explain does not evaluate.
var metas = map[uint32]string{2: "priority", 8: "iiftype", 9: "oiftype", 20: "cpu", 21: "iifgroup", 22: "oifgroup", 23: "cgroup", 24: "random"}

func (p *packet) meta(k *Kernel, f kernel.NFTField, hook place) (b bits, has bool) {
	switch f.Key {
	case metaProtocol:
		b = exactly(binary.BigEndian.AppendUint16(nil, map[inet.Family]uint16{inet.IPv4: 0x0800, inet.IPv6: 0x86dd}[p.family]))
		b.name = "meta protocol"
	case metaNfproto:
		b = exactly([]byte{map[inet.Family]byte{inet.IPv4: 2, inet.IPv6: 10}[p.family]})
		b.name = "meta nfproto"
	case metaL4proto:
		b = exactly([]byte{byte(p.protocol)})
		b.name = "meta l4proto"
	case metaPkttype: // unicast
		b = exactly([]byte{0})
		b.name = "meta pkttype"
	case metaLength:
		least, greatest := p.length()
		b = number(uint64(least), uint64(greatest), registerSize).reversed(registerSize)
		b.name = "meta length"
	case metaMark:
		b = partly(p.mark, ^p.markUnknown)
		b.name = "meta mark"
	case metaIif, metaIifname, metaIbrname:
		return p.interfaceBits(k, f.Key == metaIif, p.in, hook.arrives && (!p.sent || p.in != ""), "iifname"), true
	case metaOif, metaOifname, metaObrname:
		return p.interfaceBits(k, f.Key == metaOif, p.out, hook.leaves, "oifname"), true
	case metaSkuid, metaSkgid:
		if !p.sent {
			return b, false
		}
		b = unknownBits(registerSize)
		b.name = "meta skuid"
	default:
		b = unknownBits(nameLength)
		if b.name = "meta " + metas[f.Key]; metas[f.Key] == "" {
			b.name = "another meta field"
		}
	}
	return b, true
}

// interfaceBits returns an interface's name or index. The name is empty at hooks where the packet has no such
// interface.
func (p *packet) interfaceBits(k *Kernel, index bool, name string, passes bool, says string) (b bits) {
	length := nameLength
	if index {
		length = registerSize
	}
	switch n, known := k.Indexes[name]; {
	case !passes:
		b = exactly(make([]byte, length))
	case name == "" || index && !known:
		p.arrivalAsked = p.arrivalAsked || says == "iifname"
		b = unknownBits(length)
		b.client = name == ""
	case index:
		b = exactly(native32(uint32(n)))
	default:
		p.arrivalAsked = p.arrivalAsked || says == "iifname"
		b = exactly(append([]byte(name), make([]byte, nameLength-min(len(name), nameLength))...))
	}
	b.name = says
	return b
}

func addressBits(a netip.Addr, f inet.Family) bits {
	if a.IsValid() {
		return exactly(a.AsSlice())
	}
	b := unknownBits(f.Bits() / 8)
	b.client = true
	return b
}

func (b *bits) put(at int, part bits) {
	copy(b.data[at:], part.data)
	copy(b.known[at:], part.known)
}

func (p *packet) header() bits {
	from, to := addressBits(p.from, p.family), addressBits(p.to.Addr(), p.family)
	if p.family == inet.IPv4 {
		b := unknownBits(20)
		b.put(0, exactly([]byte{0x45}))
		b.put(6, bits{data: []byte{0, 0}, known: []byte{0xbf, 0xff}}) // no fragment
		b.put(9, exactly([]byte{byte(p.protocol)}))
		b.put(12, from)
		b.put(16, to)
		return b
	}
	b := unknownBits(40)
	b.put(0, bits{data: []byte{0x60}, known: []byte{0xf0}})
	b.put(6, exactly([]byte{byte(p.protocol)}))
	b.put(8, from)
	b.put(24, to)
	return b
}

const (
	tcpSyn, tcpPsh, tcpAck = 0x02, 0x08, 0x10
	tcpFlagsAt             = 13
)

func (p *packet) transport() bits {
	b := unknownBits(20)
	b.put(0, exactly(binary.BigEndian.AppendUint16(nil, p.port)))
	b.put(2, exactly(binary.BigEndian.AppendUint16(nil, p.to.Port())))
	if p.protocol == inet.TCP {
		b.put(tcpFlagsAt, exactly([]byte{p.flags()}))
	}
	return b
}

// flags returns the TCP flags of a SYN, the reply to it, or a later packet.
func (p *packet) flags() byte {
	switch {
	case p.phase == carriesData:
		return tcpPsh | tcpAck
	case p.phase == acknowledges:
		return tcpAck
	case p.reply:
		return tcpSyn | tcpAck
	case p.tracking == established:
		return tcpAck
	}
	return tcpSyn
}

func (p *packet) payload(f kernel.NFTField) bits {
	b := bits{}
	switch f.Key {
	case baseNetwork:
		b = p.header()
	case baseTransport:
		b = p.transport()
	}
	length := max(f.Length, 1)
	part := unknownBits(length)
	if least, greatest := p.length(); f.Key == baseNetwork && f.Length == 2 && f.Offset == lengthAt[p.family] {
		without := lengthWithout[p.family]
		part = number(uint64(least-without), uint64(greatest-without), f.Length)
	} else if end := min(f.Offset+length, len(b.data)); f.Offset < end {
		part.put(0, bits{data: b.data[f.Offset:end], known: b.known[f.Offset:end]})
	}
	part.name = payloadName(p.family, f)
	part.client = f.Key == baseNetwork && (!p.from.IsValid() || !p.to.Addr().IsValid())
	return part
}

// lengthAt is the position of the length in a header. lengthWithout are the bytes that it does not count.
var (
	lengthAt      = map[inet.Family]int{inet.IPv4: 2, inet.IPv6: 4}
	lengthWithout = map[inet.Family]uint32{inet.IPv6: 40}
)

// payloadName returns nft's name for a header field.
func payloadName(family inet.Family, f kernel.NFTField) string {
	names := map[[2]int]string{{baseTransport, 0}: "sport", {baseTransport, 2}: "dport", {baseTransport, tcpFlagsAt}: "tcp flags"}
	if family == inet.IPv4 {
		names[[2]int{baseNetwork, 9}], names[[2]int{baseNetwork, 12}], names[[2]int{baseNetwork, 16}] = "ip protocol", "ip saddr", "ip daddr"
	} else {
		names[[2]int{baseNetwork, 6}], names[[2]int{baseNetwork, 8}], names[[2]int{baseNetwork, 24}] = "ip6 nexthdr", "ip6 saddr", "ip6 daddr"
	}
	if name := names[[2]int{int(f.Key), f.Offset}]; name != "" {
		return name
	}
	return "another field of a header"
}

// ct reads a field of connection tracking. Tracking starts after the hooks of table raw.
func (p *packet) ct(f kernel.NFTField, hook place) (b bits) {
	switch f.Key {
	case ctState:
		state := p.tracking
		if hook.untracked && state != untracked {
			state = invalid
		}
		b = exactly(native32(stateBits[state]))
		b.name = "ct state"
	case ctDirection:
		b = exactly([]byte{map[bool]byte{true: 1}[p.reply]})
		b.name = "ct direction"
	case ctStatus:
		b = partly(map[bool]uint32{true: statusDNAT}[p.translated], statusDNAT)
		b.name = "ct status"
	case ctMark:
		b = partly(p.ctMark, ^p.ctMarkUnknown)
		b.name = "ct mark"
	case ctPackets:
		least, greatest := p.count(f)
		b = number(least, greatest, 2*registerSize).reversed(2 * registerSize)
		b.name = "ct packets"
	case ctZone:
		b = unknownBits(registerSize)
		if p.zone.rule == "" {
			b = exactly([]byte{0, 0})
		}
		b.name = "ct zone"
	case ctL3proto:
		b = exactly([]byte{map[inet.Family]byte{inet.IPv4: 2, inet.IPv6: 10}[p.family]})
		b.name = "ct l3proto"
	case ctProtocol:
		b = exactly([]byte{byte(p.protocol)})
		b.name = "ct protocol"
	default:
		return p.tuple(f)
	}
	return b
}

// tuple reads the addresses and ports of the connection. Only the original direction is known.
func (p *packet) tuple(f kernel.NFTField) (b bits) {
	original := !f.Reply && (f.Directed || !p.reply)
	name := map[uint32]string{
		ctSrc: "saddr", ctSrcIP: "saddr", ctSrcIP6: "saddr", ctDst: "daddr", ctDstIP: "daddr", ctDstIP6: "daddr", ctProtoSrc: "proto-src", ctProtoDst: "proto-dst",
	}[f.Key]
	switch {
	case name == "" || !original:
		b = unknownBits(nameLength)
	case name == "saddr":
		b = addressBits(p.original.from, p.family)
	case name == "daddr":
		b = addressBits(p.original.to.Addr(), p.family)
	case name == "proto-src":
		b = exactly(binary.BigEndian.AppendUint16(nil, p.original.port))
	default:
		b = exactly(binary.BigEndian.AppendUint16(nil, p.original.to.Port()))
	}
	if b.name = "ct " + name; name == "" {
		b.name = "another field of ct"
	}
	return b
}

// The address types, as in linux/rtnetlink.h.
const rtnUnicast, rtnLocal = 1, 2

func (p *packet) fib(k *Kernel, f kernel.NFTField) (b bits) {
	addr, name := p.to.Addr(), "fib daddr"
	if f.Flags&fibSaddr != 0 {
		addr, name = p.from, "fib saddr"
	}
	switch {
	case f.Key == fibAddrtype && f.Flags&(fibIif|fibByOif) != 0:
		b = k.typeBitsAt(addr)
		b.name = name + " type at an interface"
	case f.Key == fibAddrtype:
		b = k.typeBits(addr)
		b.name = name + " type"
	case f.Flags&fibSaddr != 0 && f.Flags&fibIif != 0 && (f.Flags&fibExists != 0 || f.Key == fibOif): // a reverse path filter
		b = exactly([]byte{1})
		if back := k.Routes[p.from].Interface; !p.sent && p.in != "" && back != "" && back != p.in {
			b = exactly([]byte{0})
		}
		b.name = name + " oif"
	default:
		b = unknownBits(nameLength)
		b.name = name
	}
	return b
}

// typeBitsAt returns the type of an address relative to the packet's interface. Virtual addresses are local only on
// kube-ipvs0, and packets use other interfaces. The interface of a node's own address is unknown.
func (k *Kernel) typeBitsAt(a netip.Addr) bits {
	if k.isNode(a) || a.IsLoopback() {
		return unknownBits(registerSize)
	}
	if k.isVirtual(a) {
		return exactly(native32(rtnUnicast))
	}
	return k.typeBits(a)
}

func (k *Kernel) typeBits(a netip.Addr) bits {
	if !a.IsValid() {
		b := unknownBits(registerSize)
		b.client = true
		return b
	}
	if k.IsLocal(a) {
		return exactly(native32(rtnLocal))
	}
	return exactly(native32(rtnUnicast))
}
