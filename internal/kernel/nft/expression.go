package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// One register of 16 bytes is for comparisons. The registers of 4 bytes, which hold the fields of a set's key, share its memory.
const (
	register      = unix.NFT_REG_1
	firstKeyField = unix.NFT_REG32_00
)

// Bits of the ct state: invalid, and established or related.
const (
	invalid   = 1 << 0
	followsUp = 1<<1 | 1<<2
)

// expressions builds the program of a rule.
type expressions struct {
	family inet.Family
	table  string // of iptables
	b      []byte
}

// program translates a rule. A rule in a base chain matches one family; the other chains are reached only through base chains.
func program(f inet.Family, at kernel.ChainID, r kernel.Rule, base bool) ([]byte, error) {
	e := &expressions{family: f, table: at.Table}
	if base {
		e.meta(unix.NFT_META_NFPROTO, register)
		e.compare(unix.NFT_CMP_EQ, []byte{nfproto(f)})
	}
	for _, c := range r.Conditions {
		if err := e.condition(c); err != nil {
			return nil, err
		}
	}
	return e.b, e.verdict(r.Verdict)
}

func nfproto(f inet.Family) byte {
	if f == inet.IPv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

func (e *expressions) add(name string, fill func([]byte) []byte) {
	e.b = nlbatch.AppendNest(e.b, unix.NFTA_LIST_ELEM, func(b []byte) []byte {
		b = nlbatch.AppendString(b, unix.NFTA_EXPR_NAME, name)
		return nlbatch.AppendNest(b, unix.NFTA_EXPR_DATA, fill)
	})
}

func (e *expressions) meta(key, to uint32) {
	e.add("meta", func(b []byte) []byte {
		b = appendBigUint32(b, unix.NFTA_META_DREG, to)
		return appendBigUint32(b, unix.NFTA_META_KEY, key)
	})
}

func (e *expressions) payload(base, offset, length, to uint32) {
	e.add("payload", func(b []byte) []byte {
		b = appendBigUint32(b, unix.NFTA_PAYLOAD_DREG, to)
		b = appendBigUint32(b, unix.NFTA_PAYLOAD_BASE, base)
		b = appendBigUint32(b, unix.NFTA_PAYLOAD_OFFSET, offset)
		return appendBigUint32(b, unix.NFTA_PAYLOAD_LEN, length)
	})
}

func (e *expressions) compare(op uint32, with []byte) { e.compareAt(register, op, with) }

func (e *expressions) compareAt(register, op uint32, with []byte) {
	e.add("cmp", func(b []byte) []byte {
		b = appendBigUint32(b, unix.NFTA_CMP_SREG, register)
		b = appendBigUint32(b, unix.NFTA_CMP_OP, op)
		return appendData(b, unix.NFTA_CMP_DATA, with)
	})
}

// bitwise computes (register & mask) ^ xor.
func (e *expressions) bitwise(mask, xor []byte) {
	e.add("bitwise", func(b []byte) []byte {
		b = appendBigUint32(b, unix.NFTA_BITWISE_SREG, register)
		b = appendBigUint32(b, unix.NFTA_BITWISE_DREG, register)
		b = appendBigUint32(b, unix.NFTA_BITWISE_LEN, uint32(len(mask)))
		b = appendData(b, unix.NFTA_BITWISE_MASK, mask)
		return appendData(b, unix.NFTA_BITWISE_XOR, xor)
	})
}

func native(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func equal(not bool) uint32 {
	if not {
		return unix.NFT_CMP_NEQ
	}
	return unix.NFT_CMP_EQ
}

func (e *expressions) condition(c kernel.Condition) error {
	switch c := c.(type) {
	case kernel.InSet:
		return e.inSet(c)
	case kernel.Established:
		e.inState(followsUp)
		e.compare(equal(!c.Not), native(0))
	case kernel.Invalid:
		e.inState(invalid)
		e.compare(equal(true), native(0))
	case kernel.From:
		e.within(c.Prefix, e.source)
	case kernel.To:
		e.within(c.Prefix, e.destination)
	case kernel.ToThisNode:
		e.add("fib", func(b []byte) []byte {
			b = appendBigUint32(b, unix.NFTA_FIB_DREG, register)
			b = appendBigUint32(b, unix.NFTA_FIB_RESULT, unix.NFT_FIB_RESULT_ADDRTYPE)
			return appendBigUint32(b, unix.NFTA_FIB_FLAGS, unix.NFTA_FIB_F_DADDR)
		})
		e.compare(unix.NFT_CMP_EQ, native(unix.RTN_LOCAL))
	case kernel.Arrives:
		e.arrives(c)
	case kernel.OfProtocol:
		e.protocol(byte(c.Protocol))
	case kernel.Ping:
		e.protocol(map[inet.Family]byte{inet.IPv4: unix.IPPROTO_ICMP, inet.IPv6: unix.IPPROTO_ICMPV6}[c.Family])
	case kernel.Marked:
		e.meta(unix.NFT_META_MARK, register)
		e.bitwise(native(c.Bits), native(0))
		e.compare(equal(c.Not), native(c.Bits))
	default:
		return fmt.Errorf("nftables has no condition for %T", c)
	}
	return nil
}

// inState loads the connection state, reduced to these states.
func (e *expressions) inState(bits uint32) {
	e.ct(unix.NFT_CT_STATE, register)
	e.bitwise(native(bits), native(0))
}

func (e *expressions) ct(key, to uint32) {
	e.add("ct", func(b []byte) []byte {
		b = appendBigUint32(b, unix.NFTA_CT_DREG, to)
		return appendBigUint32(b, unix.NFTA_CT_KEY, key)
	})
}

func (e *expressions) protocol(number byte) {
	e.meta(unix.NFT_META_L4PROTO, register)
	e.compare(unix.NFT_CMP_EQ, []byte{number})
}

func (e *expressions) arrives(c kernel.Arrives) {
	name := []byte(c.Interface)
	if !c.Prefix {
		name = append(name, make([]byte, max(0, unix.IFNAMSIZ-len(name)))...)
	}
	e.meta(unix.NFT_META_IIFNAME, register)
	e.compare(unix.NFT_CMP_EQ, name)
}

// The offset of the source address in the network header.
const (
	sourceOffset4 = 12
	sourceOffset6 = 8
)

func (e *expressions) source(to uint32) {
	offset := uint32(sourceOffset4)
	if e.family == inet.IPv6 {
		offset = sourceOffset6
	}
	e.payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, addressBytes(e.family), to)
}

func (e *expressions) destination(to uint32) {
	offset := uint32(16)
	if e.family == inet.IPv6 {
		offset = 24
	}
	e.payload(unix.NFT_PAYLOAD_NETWORK_HEADER, offset, addressBytes(e.family), to)
}

func addressBytes(f inet.Family) uint32 { return uint32(f.Bits() / 8) }

func (e *expressions) within(p netip.Prefix, load func(to uint32)) {
	load(register)
	ones := make([]byte, addressBytes(e.family))
	for i := range ones {
		ones[i] = ^byte(0)
	}
	full, _ := netip.AddrFromSlice(ones)
	e.bitwise(netip.PrefixFrom(full, p.Bits()).Masked().Addr().AsSlice(), make([]byte, len(ones)))
	e.compare(unix.NFT_CMP_EQ, p.Addr().AsSlice())
}

// inSet loads the fields of the key into consecutive registers.
func (e *expressions) inSet(c kernel.InSet) error {
	words := addressBytes(e.family) / 4
	switch c.Key {
	case kernel.KeySource:
		e.source(firstKeyField)
	case kernel.KeyDestination:
		e.destination(firstKeyField)
	case kernel.KeyDestinationPort, kernel.KeyDestinationClient:
		e.destination(firstKeyField)
		e.meta(unix.NFT_META_L4PROTO, firstKeyField+words)
		// TCP, UDP and SCTP have the port at the same offset. Sets have no elements of other protocols.
		e.payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, firstKeyField+words+1)
		if c.Key == kernel.KeyDestinationClient {
			e.source(firstKeyField + words + 2)
		}
	default:
		return fmt.Errorf("nftables has no key %q", c.Key)
	}
	e.add("lookup", func(b []byte) []byte {
		b = nlbatch.AppendString(b, unix.NFTA_LOOKUP_SET, c.Set)
		b = appendBigUint32(b, unix.NFTA_LOOKUP_SREG, firstKeyField)
		if c.Not {
			b = appendBigUint32(b, unix.NFTA_LOOKUP_FLAGS, unix.NFT_LOOKUP_F_INV)
		}
		return b
	})
	return nil
}

func (e *expressions) verdict(v kernel.Verdict) error {
	switch v := v.(type) {
	case kernel.Final:
		return e.final(v)
	case kernel.JumpTo:
		e.immediate(unix.NFT_JUMP, chainName(e.family, kernel.ChainID{Table: e.table, Chain: string(v)}))
	case kernel.Masquerade:
		e.add("masq", func(b []byte) []byte {
			if v.RandomPort {
				b = appendBigUint32(b, unix.NFTA_MASQ_FLAGS, randomFully)
			}
			return b
		})
	case kernel.SetMark:
		e.mark(^uint32(v), uint32(v))
	case kernel.FlipMark:
		e.mark(^uint32(0), uint32(v))
	case kernel.Balance:
		e.immediate(unix.NFT_JUMP, balanceChain(e.family))
	case kernel.Reject:
		return e.reject(v)
	default:
		return fmt.Errorf("nftables has no verdict for %T", v)
	}
	return nil
}

// final adds the verdict of a rule. In a nat chain of iptables, accept means that no other rule translates the connection. In nftables, the
// nat chains of other tables would still see it. So the connection gets a translation that changes nothing.
func (e *expressions) final(v kernel.Final) error {
	switch {
	case v == kernel.Accept && e.table == "nat":
		e.destination(register)
		e.add("nat", func(b []byte) []byte {
			b = appendBigUint32(b, unix.NFTA_NAT_TYPE, unix.NFT_NAT_DNAT)
			b = appendBigUint32(b, unix.NFTA_NAT_FAMILY, uint32(nfproto(e.family)))
			return appendBigUint32(b, unix.NFTA_NAT_REG_ADDR_MIN, register)
		})
	case v == kernel.Accept:
		e.immediate(nfAccept, "")
	case v == kernel.Drop:
		e.immediate(nfDrop, "")
	case v == kernel.Return:
		e.immediate(unix.NFT_RETURN, "")
	default:
		return fmt.Errorf("nftables has no verdict %q", v)
	}
	return nil
}

const nfDrop, nfAccept = 0, 1

func (e *expressions) immediate(code int32, chain string) {
	e.add("immediate", func(b []byte) []byte {
		b = appendBigUint32(b, unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		return nlbatch.AppendNest(b, unix.NFTA_IMMEDIATE_DATA, func(b []byte) []byte {
			return nlbatch.AppendNest(b, unix.NFTA_DATA_VERDICT, func(b []byte) []byte {
				b = appendBigUint32(b, unix.NFTA_VERDICT_CODE, uint32(code))
				if chain != "" {
					b = nlbatch.AppendString(b, unix.NFTA_VERDICT_CHAIN, chain)
				}
				return b
			})
		})
	})
}

func (e *expressions) mark(mask, xor uint32) {
	e.meta(unix.NFT_META_MARK, register)
	e.bitwise(native(mask), native(xor))
	e.add("meta", func(b []byte) []byte {
		b = appendBigUint32(b, unix.NFTA_META_KEY, unix.NFT_META_MARK)
		return appendBigUint32(b, unix.NFTA_META_SREG, register)
	})
}

// icmpCodes are the codes of ICMP "destination unreachable".
var icmpCodes = map[kernel.Reject]uint8{kernel.ProtocolUnreachable: 2, kernel.PortUnreachable: 3, kernel.PortUnreachable6: 4}

func (e *expressions) reject(v kernel.Reject) error {
	code, known := icmpCodes[v]
	if !known {
		return fmt.Errorf("nftables has no error %q", v)
	}
	e.add("reject", func(b []byte) []byte {
		b = appendBigUint32(b, unix.NFTA_REJECT_TYPE, unix.NFT_REJECT_ICMP_UNREACH)
		return nlbatch.AppendUint8(b, unix.NFTA_REJECT_ICMP_CODE, code)
	})
	return nil
}
