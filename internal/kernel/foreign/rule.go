package foreign

import (
	"bytes"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

func decodeRule(payload []byte) (at kernel.NFTName, r kernel.NFTRule, err error) {
	listed, err := wire.DecodeRule(payload)
	expressions, wrong := listed.Expressions()
	err = errors.Join(err, wrong)
	for _, x := range expressions {
		s, wrong := statement(x)
		r.Statements, err = append(r.Statements, s), errors.Join(err, wrong)
	}
	r.Handle = listed.Handle()
	return kernel.NFTName{Family: familyOf(listed.Family), Table: listed.Table, Name: listed.Chain}, r, err
}

type expression struct {
	wire.Expression
	err error
}

func (e *expression) has(attr uint16) bool { _, has := e.Attrs[attr]; return has }

func (e *expression) number(attr uint16) uint32 {
	v, has := e.Attrs[attr]
	if !has {
		return 0
	}
	if len(v) == 1 {
		return uint32(v[0])
	}
	n, err := nlbatch.BigUint32(v)
	e.err = errors.Join(e.err, err)
	return n
}

// register returns the index of the first 4-byte word of a register.
func (e *expression) register(attr uint16) int {
	n := int(e.number(attr))
	if n >= unix.NFT_REG32_00 {
		n -= unix.NFT_REG32_00
	} else if n = (n - unix.NFT_REG_1) * lengthOfRegister; n < 0 {
		n = 0
	}
	return min(n, lengthOfRegisters/4-1)
}

func (e *expression) length(attr uint16) int { return int(min(e.number(attr), lengthOfRegisters)) }

func (e *expression) value(attr uint16) []byte {
	if !e.has(attr) {
		return nil
	}
	v, _, err := data(e.Attrs[attr])
	e.err = errors.Join(e.err, err)
	return v
}

// data copies the value, because the payload of a message is overwritten.
func data(b []byte) (value []byte, verdict kernel.NFTVerdict, err error) {
	value, verdict, err = wire.Data(b)
	return bytes.Clone(value), verdict, err
}

// decoders maps the names of the expressions that explain evaluates to their decoders.
var decoders = map[string]func(*expression) kernel.NFTStatement{
	"meta": func(e *expression) kernel.NFTStatement {
		f := kernel.NFTField{Kind: kernel.NFTMeta, Key: e.number(unix.NFTA_META_KEY)}
		return e.loadsOrStores(f, unix.NFTA_META_DREG, unix.NFTA_META_SREG)
	},
	"ct": func(e *expression) kernel.NFTStatement {
		f := kernel.NFTField{Kind: kernel.NFTCt, Key: e.number(unix.NFTA_CT_KEY)}
		f.Directed, f.Reply = e.has(unix.NFTA_CT_DIRECTION), e.number(unix.NFTA_CT_DIRECTION) != 0
		return e.loadsOrStores(f, unix.NFTA_CT_DREG, unix.NFTA_CT_SREG)
	},
	"payload": func(e *expression) kernel.NFTStatement {
		f := kernel.NFTField{Kind: kernel.NFTPayload, Key: e.number(unix.NFTA_PAYLOAD_BASE)}
		f.Offset, f.Length = int(e.number(unix.NFTA_PAYLOAD_OFFSET)), e.length(unix.NFTA_PAYLOAD_LEN)
		return e.loadsOrStores(f, unix.NFTA_PAYLOAD_DREG, unix.NFTA_PAYLOAD_SREG)
	},
	"fib": func(e *expression) kernel.NFTStatement {
		return kernel.NFTLoad{To: e.register(unix.NFTA_FIB_DREG), Field: kernel.NFTField{
			Kind: kernel.NFTFib, Key: e.number(unix.NFTA_FIB_RESULT), Flags: e.number(unix.NFTA_FIB_FLAGS),
		}}
	},
	"immediate": func(e *expression) kernel.NFTStatement {
		value, verdict, err := data(e.Attrs[unix.NFTA_IMMEDIATE_DATA])
		e.err = errors.Join(e.err, err)
		if e.number(unix.NFTA_IMMEDIATE_DREG) == unix.NFT_REG_VERDICT {
			return verdict
		}
		return kernel.NFTImmediate{To: e.register(unix.NFTA_IMMEDIATE_DREG), Data: value}
	},
	"bitwise": func(e *expression) kernel.NFTStatement {
		return kernel.NFTBitwise{
			From: e.register(unix.NFTA_BITWISE_SREG), To: e.register(unix.NFTA_BITWISE_DREG), Length: e.length(unix.NFTA_BITWISE_LEN),
			Mask: e.value(unix.NFTA_BITWISE_MASK), Xor: e.value(unix.NFTA_BITWISE_XOR),
		}
	},
	"byteorder": func(e *expression) kernel.NFTStatement {
		return kernel.NFTByteOrder{
			From: e.register(unix.NFTA_BYTEORDER_SREG), To: e.register(unix.NFTA_BYTEORDER_DREG),
			Length: e.length(unix.NFTA_BYTEORDER_LEN), Size: e.length(unix.NFTA_BYTEORDER_SIZE),
		}
	},
	"cmp": func(e *expression) kernel.NFTStatement {
		return kernel.NFTCompare{From: e.register(unix.NFTA_CMP_SREG), Op: e.number(unix.NFTA_CMP_OP), Data: e.value(unix.NFTA_CMP_DATA)}
	},
	"range": func(e *expression) kernel.NFTStatement {
		return kernel.NFTRange{
			From: e.register(unix.NFTA_RANGE_SREG), Low: e.value(unix.NFTA_RANGE_FROM_DATA), High: e.value(unix.NFTA_RANGE_TO_DATA),
			Not: e.number(unix.NFTA_RANGE_OP) == unix.NFT_RANGE_NEQ,
		}
	},
	"lookup": func(e *expression) kernel.NFTStatement {
		l := kernel.NFTLookup{Set: e.Text(unix.NFTA_LOOKUP_SET), From: e.register(unix.NFTA_LOOKUP_SREG), To: -1}
		if l.Map = e.has(unix.NFTA_LOOKUP_DREG); l.Map && e.number(unix.NFTA_LOOKUP_DREG) != unix.NFT_REG_VERDICT {
			l.To = e.register(unix.NFTA_LOOKUP_DREG)
		}
		l.Not = e.number(unix.NFTA_LOOKUP_FLAGS)&unix.NFT_LOOKUP_F_INV != 0
		return l
	},
	"nat": func(e *expression) kernel.NFTStatement {
		switch {
		case e.number(unix.NFTA_NAT_TYPE) != unix.NFT_NAT_SNAT:
			return kernel.NFTAction{Name: "dnat"}
		case e.number(unix.NFTA_NAT_FLAGS)&natPrefix != 0:
			return kernel.NFTAction{Name: "snat prefix"}
		}
		return kernel.NFTSourceNAT{
			Addresses: e.registers(unix.NFTA_NAT_REG_ADDR_MIN, unix.NFTA_NAT_REG_ADDR_MAX),
			Ports:     e.registers(unix.NFTA_NAT_REG_PROTO_MIN, unix.NFTA_NAT_REG_PROTO_MAX),
		}
	},
	"masq": func(e *expression) kernel.NFTStatement {
		return kernel.NFTSourceNAT{
			Addresses: [2]int{-1, -1}, Ports: e.registers(unix.NFTA_MASQ_REG_PROTO_MIN, unix.NFTA_MASQ_REG_PROTO_MAX), Masquerade: true,
		}
	},
}

// natPrefix is NF_NAT_RANGE_NETMAP: each address of a range becomes one of another range.
const natPrefix = 1 << 6

// registers returns the registers of a range. If the rule gives only one value, it is both the first and the last.
func (e *expression) registers(low, high uint16) [2]int {
	switch {
	case !e.has(low):
		return [2]int{-1, -1}
	case !e.has(high):
		high = low
	}
	return [2]int{e.register(low), e.register(high)}
}

func (e *expression) loadsOrStores(f kernel.NFTField, dreg, sreg uint16) kernel.NFTStatement {
	if e.has(sreg) {
		return kernel.NFTStore{From: e.register(sreg), Field: f}
	}
	return kernel.NFTLoad{To: e.register(dreg), Field: f}
}

// loads maps expressions with unknown results to the attributes of their destination registers.
var loads = map[string]uint16{
	"rt": unix.NFTA_RT_DREG, "exthdr": unix.NFTA_EXTHDR_DREG, "hash": unix.NFTA_HASH_DREG, "numgen": unix.NFTA_NG_DREG,
	"socket": 2, "osf": 1, "tunnel": 2, "xfrm": 1, // the dreg attributes in nf_tables.h
}

func statement(x wire.Expression) (kernel.NFTStatement, error) {
	e := expression{Expression: x}
	if decode, known := decoders[e.Name]; known {
		s := decode(&e)
		return s, e.err
	}
	if e.Name == "exthdr" && e.has(unix.NFTA_EXTHDR_SREG) {
		f := kernel.NFTField{Kind: e.Name, Key: e.number(unix.NFTA_EXTHDR_TYPE), Length: e.length(unix.NFTA_EXTHDR_LEN), Flags: e.number(unix.NFTA_EXTHDR_OP)}
		return kernel.NFTStore{From: e.register(unix.NFTA_EXTHDR_SREG), Field: f}, e.err
	}
	if register, is := loads[e.Name]; is && e.has(register) {
		return kernel.NFTLoad{To: e.register(register), Field: kernel.NFTField{Kind: e.Name}}, e.err
	}
	return other(&e), e.err
}

// other returns the statement for an expression whose registers do not matter.
func other(e *expression) kernel.NFTStatement {
	switch e.Name {
	case "limit", "quota", "connlimit", "inner":
		return kernel.NFTOpaque{Text: e.Name}
	case "dynset":
		if e.has(unix.NFTA_DYNSET_EXPR) || e.has(dynsetExprs) {
			return kernel.NFTOpaque{Text: "the rate in set " + e.Text(unix.NFTA_DYNSET_SET_NAME)}
		}
	case "objref":
		name := "object " + e.Text(unix.NFTA_OBJREF_IMM_NAME)
		switch e.number(unix.NFTA_OBJREF_IMM_TYPE) {
		case unix.NFT_OBJECT_COUNTER, unix.NFT_OBJECT_CT_HELPER, unix.NFT_OBJECT_SECMARK, unix.NFT_OBJECT_CT_EXPECT:
		case unix.NFT_OBJECT_CT_TIMEOUT:
			return kernel.NFTAction{Name: "ct timeout"}
		case unix.NFT_OBJECT_TUNNEL:
			return kernel.NFTAction{Name: "tunnel"}
		case unix.NFT_OBJECT_SYNPROXY:
			return kernel.NFTAction{Name: "synproxy"}
		default: // a limit, a quota, a connection limit, or an object chosen by a map
			return kernel.NFTOpaque{Text: name}
		}
	case "match": // a match extension of iptables
		if name := e.Text(unix.NFTA_MATCH_NAME); name != "comment" {
			return kernel.NFTOpaque{Text: "xt match " + name}
		}
	case "target":
		return kernel.NFTAction{Name: "xt " + e.Text(unix.NFTA_TARGET_NAME)}
	}
	return kernel.NFTAction{Name: e.Name}
}

const dynsetExprs = 10
