package wire

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Comparisons use a register of 16 bytes. The fields of a set's key are in registers of 4 bytes, which share the
// memory of the larger register.
const (
	Register      = unix.NFT_REG_1
	FirstKeyField = unix.NFT_REG32_00
)

// Verdicts that end a hook.
const (
	Drop   = 0
	Accept = 1
)

// Program builds the expressions of a rule for one family.
type Program struct {
	Family inet.Family
	Bytes  []byte
}

// Add adds an expression.
func (p *Program) Add(name string, fill func([]byte) []byte) {
	p.Bytes = nlbatch.AppendNest(p.Bytes, unix.NFTA_LIST_ELEM, func(b []byte) []byte {
		b = nlbatch.AppendString(b, unix.NFTA_EXPR_NAME, name)
		return nlbatch.AppendNest(b, unix.NFTA_EXPR_DATA, fill)
	})
}

// Meta loads metadata of the packet.
func (p *Program) Meta(key, to uint32) {
	p.Add("meta", func(b []byte) []byte {
		b = nlbatch.AppendBigUint32(b, unix.NFTA_META_DREG, to)
		return nlbatch.AppendBigUint32(b, unix.NFTA_META_KEY, key)
	})
}

// Match matches packets with this value in their metadata.
func (p *Program) Match(key uint32, value ...byte) {
	p.Meta(key, Register)
	p.Compare(Register, unix.NFT_CMP_EQ, value)
}

// OfFamily matches the packets of the family.
func (p *Program) OfFamily() { p.Match(unix.NFT_META_NFPROTO, nfproto(p.Family)) }

func nfproto(f inet.Family) byte {
	if f == inet.IPv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

func (p *Program) payload(base, offset, length, to uint32) {
	p.Add("payload", func(b []byte) []byte {
		b = nlbatch.AppendBigUint32(b, unix.NFTA_PAYLOAD_DREG, to)
		b = nlbatch.AppendBigUint32(b, unix.NFTA_PAYLOAD_BASE, base)
		b = nlbatch.AppendBigUint32(b, unix.NFTA_PAYLOAD_OFFSET, offset)
		return nlbatch.AppendBigUint32(b, unix.NFTA_PAYLOAD_LEN, length)
	})
}

// SourceOffset returns the offset of the source address in the network header.
func SourceOffset(f inet.Family) uint32 {
	if f == inet.IPv6 {
		return 8
	}
	return 12
}

// Source loads the source address.
func (p *Program) Source(to uint32) {
	p.payload(unix.NFT_PAYLOAD_NETWORK_HEADER, SourceOffset(p.Family), Address(p.Family).Length, to)
}

// Destination loads the destination address.
func (p *Program) Destination(to uint32) {
	length := Address(p.Family).Length
	p.payload(unix.NFT_PAYLOAD_NETWORK_HEADER, SourceOffset(p.Family)+length, length, to)
}

// Port loads the destination port, which TCP, UDP and SCTP have at the same offset.
func (p *Program) Port(to uint32) { p.payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, to) }

// Load loads a constant into a register.
func (p *Program) Load(value []byte, to uint32) {
	p.Add("immediate", func(b []byte) []byte {
		b = nlbatch.AppendBigUint32(b, unix.NFTA_IMMEDIATE_DREG, to)
		return appendData(b, unix.NFTA_IMMEDIATE_DATA, value)
	})
}

// Compare compares a register with a constant.
func (p *Program) Compare(register, op uint32, with []byte) {
	p.Add("cmp", func(b []byte) []byte {
		b = nlbatch.AppendBigUint32(b, unix.NFTA_CMP_SREG, register)
		b = nlbatch.AppendBigUint32(b, unix.NFTA_CMP_OP, op)
		return appendData(b, unix.NFTA_CMP_DATA, with)
	})
}

// Bitwise computes (register & mask) ^ xor.
func (p *Program) Bitwise(register uint32, mask, xor []byte) {
	p.Add("bitwise", func(b []byte) []byte {
		b = nlbatch.AppendBigUint32(b, unix.NFTA_BITWISE_SREG, register)
		b = nlbatch.AppendBigUint32(b, unix.NFTA_BITWISE_DREG, register)
		b = nlbatch.AppendBigUint32(b, unix.NFTA_BITWISE_LEN, uint32(len(mask)))
		b = appendData(b, unix.NFTA_BITWISE_MASK, mask)
		return appendData(b, unix.NFTA_BITWISE_XOR, xor)
	})
}

// KeepBits keeps the first bits of an address.
func (p *Program) KeepBits(n int, register uint32) {
	zero := make([]byte, Address(p.Family).Length)
	ones, _ := netip.AddrFromSlice(bytes.Repeat([]byte{0xff}, len(zero)))
	p.Bitwise(register, netip.PrefixFrom(ones, n).Masked().Addr().AsSlice(), zero)
}

// Native encodes a number in host byte order.
func Native(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// Conntrack loads a property of the connection, or of one direction of it.
func (p *Program) Conntrack(key, to uint32, direction ...byte) {
	p.Add("ct", func(b []byte) []byte {
		b = nlbatch.AppendBigUint32(b, unix.NFTA_CT_DREG, to)
		b = nlbatch.AppendBigUint32(b, unix.NFTA_CT_KEY, key)
		if len(direction) > 0 {
			b = nlbatch.AppendAttr(b, unix.NFTA_CT_DIRECTION, direction)
		}
		return b
	})
}

// Translate translates the destination of the connection to the address and the port in two registers. If port is
// zero, the port does not change.
func (p *Program) Translate(address, port uint32) {
	p.Add("nat", func(b []byte) []byte {
		b = nlbatch.AppendBigUint32(b, unix.NFTA_NAT_TYPE, unix.NFT_NAT_DNAT)
		b = nlbatch.AppendBigUint32(b, unix.NFTA_NAT_FAMILY, uint32(nfproto(p.Family)))
		b = nlbatch.AppendBigUint32(b, unix.NFTA_NAT_REG_ADDR_MIN, address)
		if port != 0 {
			b = nlbatch.AppendBigUint32(b, unix.NFTA_NAT_REG_PROTO_MIN, port)
		}
		return b
	})
}

// Immediate adds a verdict. A verdict that leads to a chain contains the chain's name.
func (p *Program) Immediate(code int32, chain string) {
	p.Add("immediate", func(b []byte) []byte {
		b = nlbatch.AppendBigUint32(b, unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		return nlbatch.AppendNest(b, unix.NFTA_IMMEDIATE_DATA, func(b []byte) []byte { return appendVerdict(b, code, chain) })
	})
}

// Reject refuses a connection with an ICMP "destination unreachable" message that has this code.
func (p *Program) Reject(code uint8) {
	p.Add("reject", func(b []byte) []byte {
		b = nlbatch.AppendBigUint32(b, unix.NFTA_REJECT_TYPE, unix.NFT_REJECT_ICMP_UNREACH)
		return nlbatch.AppendUint8(b, unix.NFTA_REJECT_ICMP_CODE, code)
	})
}
