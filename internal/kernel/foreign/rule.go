package foreign

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

func decodeRule(payload []byte) (at kernel.NFTName, r kernel.NFTRule, err error) {
	if len(payload) > 0 {
		at.Family = familyOf(payload[0])
	}
	err = eachAttr(payload, func(typ uint16, v []byte) error {
		switch typ {
		case unix.NFTA_RULE_TABLE:
			at.Table = nlbatch.String(v)
		case unix.NFTA_RULE_CHAIN:
			at.Name = nlbatch.String(v)
		case unix.NFTA_RULE_HANDLE:
			if len(v) == 8 {
				r.Handle = binary.BigEndian.Uint64(v)
			}
		case unix.NFTA_RULE_EXPRESSIONS:
			return nlbatch.EachAttr(v, func(_ uint16, v []byte) error {
				s, err := decodeExpression(v)
				r.Statements = append(r.Statements, s)
				return err
			})
		}
		return nil
	})
	return at, r, err
}

type expression struct {
	name  string
	attrs map[uint16][]byte
	err   error
}

func parse(payload []byte) (e expression, err error) {
	e.attrs = map[uint16][]byte{}
	err = nlbatch.EachAttr(payload, func(typ uint16, v []byte) error {
		switch typ {
		case unix.NFTA_EXPR_NAME:
			e.name = nlbatch.String(v)
		case unix.NFTA_EXPR_DATA:
			return nlbatch.EachAttr(v, func(typ uint16, v []byte) error { e.attrs[typ] = v; return nil })
		}
		return nil
	})
	return e, err
}

func (e *expression) has(attr uint16) bool { _, has := e.attrs[attr]; return has }

func (e *expression) number(attr uint16) uint32 {
	v, has := e.attrs[attr]
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
	v, _, err := data(e.attrs[attr])
	e.err = errors.Join(e.err, err)
	return v
}

func data(b []byte) (value []byte, verdict kernel.NFTVerdict, err error) {
	err = nlbatch.EachAttr(b, func(typ uint16, v []byte) error {
		if typ == unix.NFTA_DATA_VALUE {
			value = append([]byte{}, v...)
			return nil
		}
		return nlbatch.EachAttr(v, func(typ uint16, v []byte) (err error) {
			switch typ {
			case unix.NFTA_VERDICT_CODE:
				var code uint32
				code, err = nlbatch.BigUint32(v)
				verdict.Code = int32(code)
			case unix.NFTA_VERDICT_CHAIN:
				verdict.Chain = nlbatch.String(v)
			}
			return err
		})
	})
	return value, verdict, err
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
		value, verdict, err := data(e.attrs[unix.NFTA_IMMEDIATE_DATA])
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
		l := kernel.NFTLookup{Set: nlbatch.String(e.attrs[unix.NFTA_LOOKUP_SET]), From: e.register(unix.NFTA_LOOKUP_SREG), To: -1}
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

func decodeExpression(payload []byte) (kernel.NFTStatement, error) {
	e, err := parse(payload)
	if err != nil {
		return nil, err
	}
	if decode, known := decoders[e.name]; known {
		s := decode(&e)
		return s, e.err
	}
	if e.name == "exthdr" && e.has(unix.NFTA_EXTHDR_SREG) {
		f := kernel.NFTField{Kind: e.name, Key: e.number(unix.NFTA_EXTHDR_TYPE), Length: e.length(unix.NFTA_EXTHDR_LEN), Flags: e.number(unix.NFTA_EXTHDR_OP)}
		return kernel.NFTStore{From: e.register(unix.NFTA_EXTHDR_SREG), Field: f}, e.err
	}
	if register, is := loads[e.name]; is && e.has(register) {
		return kernel.NFTLoad{To: e.register(register), Field: kernel.NFTField{Kind: e.name}}, e.err
	}
	return other(&e), e.err
}

// other returns the statement for an expression whose registers do not matter.
func other(e *expression) kernel.NFTStatement {
	switch e.name {
	case "limit", "quota", "connlimit", "inner":
		return kernel.NFTOpaque{Text: e.name}
	case "dynset":
		if e.has(unix.NFTA_DYNSET_EXPR) || e.has(dynsetExprs) {
			return kernel.NFTOpaque{Text: "the rate in set " + nlbatch.String(e.attrs[unix.NFTA_DYNSET_SET_NAME])}
		}
	case "objref":
		name := "object " + nlbatch.String(e.attrs[unix.NFTA_OBJREF_IMM_NAME])
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
		if name := nlbatch.String(e.attrs[unix.NFTA_MATCH_NAME]); name != "comment" {
			return kernel.NFTOpaque{Text: "xt match " + name}
		}
	case "target":
		return kernel.NFTAction{Name: "xt " + nlbatch.String(e.attrs[unix.NFTA_TARGET_NAME])}
	}
	return kernel.NFTAction{Name: e.name}
}

const dynsetExprs = 10
