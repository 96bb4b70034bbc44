package explain

import (
	"encoding/binary"
	"math"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// harmless are expressions that neither stop nor change a packet.
var harmless = map[string]bool{
	"counter": true, "log": true, "last": true, "dynset": true, "objref": true, "match": true, "notrack": true,
	"xt LOG": true, "xt NFLOG": true, "xt TCPMSS": true, "xt CHECKSUM": true,
}

// The harmless keys of meta and ct: only queueing disciplines, security modules and other programs read their values.
var (
	harmlessMeta = map[uint32]bool{2: true, 12: true, 14: true} // priority, nftrace, secmark
	harmlessCt   = map[uint32]bool{4: true, 13: true, 18: true} // secmark, labels, event
)

// set changes a field of the packet. Marks and zones affect later rules; any other change may stop the packet, unless it is harmless.
func (r *nftRun) set(s kernel.NFTStore) {
	what := ""
	switch key := s.Field.Key; s.Field.Kind {
	case kernel.NFTMeta:
		if key == metaMark {
			r.setMark(s)
		} else if !harmlessMeta[key] {
			what = "the changed property of the packet"
		}
	case kernel.NFTCt:
		switch {
		case key == ctMark:
			r.setMark(s)
		case key == ctZone:
			r.storeZone(s)
		case !harmlessCt[key]:
			what = "the changed property of the connection"
		}
	case kernel.NFTPayload:
		what = r.changedHeader(s)
	default:
		if !r.mildOption(s) {
			what = "the changed option of the header"
		}
	}
	if what != "" {
		r.other(r.shown(), r.flow, what)
	}
}

func (r *nftRun) setMark(s kernel.NFTStore) {
	before, b := *r.p, r.registers.read(s.From, registerSize)
	value, unknown := binary.NativeEndian.Uint32(b.data), ^binary.NativeEndian.Uint32(b.known)
	if s.Field.Kind == kernel.NFTMeta {
		r.p.mark, r.p.markUnknown = value&^unknown, unknown
	} else {
		r.p.ctMark, r.p.ctMarkUnknown = value&^unknown, unknown
	}
	r.marked(r.p, before, r.shown(), r.flow)
}

func (r *nftRun) storeZone(s kernel.NFTStore) {
	const length = 2
	b := r.registers.read(s.From, length)
	f := r.flow.only(resultOf(b.isKnown()), condition{})
	r.setZone(r.p, r.shown(), kernel.SetZone{
		Zone: binary.NativeEndian.Uint16(b.data), Original: !s.Field.Directed || !s.Field.Reply, Reply: !s.Field.Directed || s.Field.Reply,
	}, f)
}

// anyValue lists the bits of a header's first bytes that have no effect on the packet's path: the traffic class, the flow label, and the
// identification of fragments. hopsAt is the byte with the remaining hops.
var (
	anyValue = map[inet.Family][]byte{inet.IPv4: {0, 0xff, 0, 0, 0xff, 0xff}, inet.IPv6: {0x0f, 0xff, 0xff, 0xff}}
	hopsAt   = map[inet.Family]int{inet.IPv4: 8, inet.IPv6: 7}
)

// changedHeader describes a change of a header that may stop the packet, or returns "".
func (r *nftRun) changedHeader(s kernel.NFTStore) string {
	if s.Field.Key == baseTransport && s.Field.Offset < registerSize {
		return "the changed port"
	}
	b, old, free := r.registers.read(s.From, s.Field.Length), r.p.payload(s.Field), anyValue[r.p.family]
	for i := range b.data {
		at, must := s.Field.Offset+i, byte(math.MaxUint8)
		switch {
		case s.Field.Key != baseNetwork:
		case at == hopsAt[r.p.family] && b.known[i] == math.MaxUint8 && b.data[i] >= kernel.EnoughHops:
			continue
		case at < len(free):
			must = ^free[at]
		}
		if same := b.known[i] & old.known[i] &^ (b.data[i] ^ old.data[i]); same&must != must {
			return "the changed header"
		}
	}
	return ""
}

// mildOption reports whether the statement limits the segment size to the path MTU, or to a sufficient size.
func (r *nftRun) mildOption(s kernel.NFTStore) bool {
	const length, tcpOption, segmentSize = 2, 1, 2
	b := r.registers.read(s.From, length)
	return s.Field.Flags == tcpOption && s.Field.Key == segmentSize && (!b.isKnown() || binary.BigEndian.Uint16(b.data) >= kernel.EnoughBytes)
}

// source changes the source of the connection.
func (r *nftRun) source(s kernel.NFTSourceNAT) end {
	n := sourceNAT{unknown: !s.Masquerade}
	if s.Addresses[0] >= 0 {
		n.first, n.last = r.address(s.Addresses[0]), r.address(s.Addresses[1])
		n.unknown = !n.first.IsValid() || !n.last.IsValid()
	}
	if s.Ports[0] >= 0 {
		const length = 2
		low, high := r.registers.read(s.Ports[0], length), r.registers.read(s.Ports[1], length)
		if low.isKnown() && high.isKnown() {
			n.ports = int(binary.BigEndian.Uint16(high.data)) - int(binary.BigEndian.Uint16(low.data)) + 1
		}
	}
	return r.masquerade(r.shown(), r.flow, n)
}
