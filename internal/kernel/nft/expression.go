package nft

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/balance"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Bits of the ct state: invalid, and established or related.
const (
	invalid   = 1 << 0
	followsUp = 1<<1 | 1<<2
)

// randomFully is NF_NAT_RANGE_PROTO_RANDOM_FULLY, which golang.org/x/sys/unix lacks.
const randomFully = 1 << 4

type expressions struct {
	wire.Program
	table string // the iptables table
}

// program translates a rule. A rule in a base chain matches one family; the other chains are reached only through base chains.
func program(f inet.Family, at kernel.ChainID, r kernel.Rule, base bool) ([]byte, error) {
	e := &expressions{wire.Program{Family: f}, at.Table}
	if base {
		e.OfFamily()
	}
	for _, c := range r.Conditions {
		if err := e.condition(c); err != nil {
			return nil, err
		}
	}
	err := e.verdict(r.Verdict)
	return e.Bytes, err
}

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
		e.Compare(wire.Register, equal(!c.Not), wire.Native(0))
	case kernel.Invalid:
		e.inState(invalid)
		e.Compare(wire.Register, equal(true), wire.Native(0))
	case kernel.From:
		e.within(c.Prefix, e.Source)
	case kernel.To:
		e.within(c.Prefix, e.Destination)
	case kernel.ToThisNode:
		e.Add("fib", func(b []byte) []byte {
			b = nlbatch.AppendBigUint32(b, unix.NFTA_FIB_DREG, wire.Register)
			b = nlbatch.AppendBigUint32(b, unix.NFTA_FIB_RESULT, unix.NFT_FIB_RESULT_ADDRTYPE)
			return nlbatch.AppendBigUint32(b, unix.NFTA_FIB_FLAGS, unix.NFTA_FIB_F_DADDR)
		})
		e.Compare(wire.Register, unix.NFT_CMP_EQ, wire.Native(unix.RTN_LOCAL))
	case kernel.Arrives:
		e.arrives(c)
	case kernel.OfProtocol:
		e.Match(unix.NFT_META_L4PROTO, byte(c.Protocol))
	case kernel.Ping:
		e.Match(unix.NFT_META_L4PROTO, map[inet.Family]byte{inet.IPv4: unix.IPPROTO_ICMP, inet.IPv6: unix.IPPROTO_ICMPV6}[c.Family])
	case kernel.Marked:
		e.Meta(unix.NFT_META_MARK, wire.Register)
		e.Bitwise(wire.Register, wire.Native(c.Bits), wire.Native(0))
		e.Compare(wire.Register, equal(c.Not), wire.Native(c.Bits))
	default:
		return fmt.Errorf("nftables has no condition for %T", c)
	}
	return nil
}

// inState loads the connection state and keeps only these bits.
func (e *expressions) inState(bits uint32) {
	e.Conntrack(unix.NFT_CT_STATE, wire.Register)
	e.Bitwise(wire.Register, wire.Native(bits), wire.Native(0))
}

func (e *expressions) arrives(c kernel.Arrives) {
	name := []byte(c.Interface)
	if !c.Prefix {
		name = append(name, make([]byte, max(0, unix.IFNAMSIZ-len(name)))...)
	}
	e.Match(unix.NFT_META_IIFNAME, name...)
}

func (e *expressions) within(p netip.Prefix, load func(to uint32)) {
	load(wire.Register)
	e.KeepBits(p.Bits(), wire.Register)
	e.Compare(wire.Register, unix.NFT_CMP_EQ, p.Addr().AsSlice())
}

func (e *expressions) inSet(c kernel.InSet) error {
	words := wire.Address(e.Family).Length / 4
	switch c.Key {
	case kernel.KeySource:
		e.Source(wire.FirstKeyField)
	case kernel.KeyDestination:
		e.Destination(wire.FirstKeyField)
	case kernel.KeyDestinationPort, kernel.KeyDestinationClient:
		e.Destination(wire.FirstKeyField)
		e.Meta(unix.NFT_META_L4PROTO, wire.FirstKeyField+words)
		e.Port(wire.FirstKeyField + words + 1) // sets contain no elements of protocols without ports
		if c.Key == kernel.KeyDestinationClient {
			e.Source(wire.FirstKeyField + words + 2)
		}
	default:
		return fmt.Errorf("nftables has no key %q", c.Key)
	}
	e.Add("lookup", func(b []byte) []byte {
		b = nlbatch.AppendString(b, unix.NFTA_LOOKUP_SET, c.Set)
		b = nlbatch.AppendBigUint32(b, unix.NFTA_LOOKUP_SREG, wire.FirstKeyField)
		if c.Not {
			b = nlbatch.AppendBigUint32(b, unix.NFTA_LOOKUP_FLAGS, unix.NFT_LOOKUP_F_INV)
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
		e.Immediate(unix.NFT_JUMP, chainName(e.Family, kernel.ChainID{Table: e.table, Chain: string(v)}))
	case kernel.Masquerade:
		e.Add("masq", func(b []byte) []byte {
			if v.RandomPort {
				b = nlbatch.AppendBigUint32(b, unix.NFTA_MASQ_FLAGS, randomFully)
			}
			return b
		})
	case kernel.SetMark:
		e.mark(^uint32(v), uint32(v))
	case kernel.FlipMark:
		e.mark(^uint32(0), uint32(v))
	case kernel.Balance:
		e.Immediate(unix.NFT_JUMP, balance.Entrance(e.Family))
	case kernel.Reject:
		return e.reject(v)
	default:
		return fmt.Errorf("nftables has no verdict for %T", v)
	}
	return nil
}

// final adds the verdict of a rule. In a nat chain of iptables, accept means that no other rule translates the
// connection. In nftables, the packet would still traverse the nat chains of other tables. Therefore, Accept gives
// the connection a translation that changes nothing.
func (e *expressions) final(v kernel.Final) error {
	switch {
	case v == kernel.Accept && e.table == "nat":
		e.Destination(wire.Register)
		e.Translate(wire.Register, 0)
	case v == kernel.Accept:
		e.Immediate(wire.Accept, "")
	case v == kernel.Drop:
		e.Immediate(wire.Drop, "")
	case v == kernel.Return:
		e.Immediate(unix.NFT_RETURN, "")
	default:
		return fmt.Errorf("nftables has no verdict %q", v)
	}
	return nil
}

func (e *expressions) mark(mask, xor uint32) {
	e.Meta(unix.NFT_META_MARK, wire.Register)
	e.Bitwise(wire.Register, wire.Native(mask), wire.Native(xor))
	e.Add("meta", func(b []byte) []byte {
		b = nlbatch.AppendBigUint32(b, unix.NFTA_META_KEY, unix.NFT_META_MARK)
		return nlbatch.AppendBigUint32(b, unix.NFTA_META_SREG, wire.Register)
	})
}

// icmpCodes maps rejections to codes of ICMP "destination unreachable" messages.
var icmpCodes = map[kernel.Reject]uint8{kernel.ProtocolUnreachable: 2, kernel.PortUnreachable: 3, kernel.PortUnreachable6: 4}

func (e *expressions) reject(v kernel.Reject) error {
	code, known := icmpCodes[v]
	if !known {
		return fmt.Errorf("nftables cannot reject with %q", v)
	}
	e.Reject(code)
	return nil
}
