package wire

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Constants of include/uapi/linux/netfilter/nf_tables.h that golang.org/x/sys/unix lacks.
const (
	setDescConcat  = 2
	setFieldLength = 1
	setCount       = 20
	flagConcat     = 0x80
	tableDormant   = 1
)

const nfgenHeaderLen = 4

func request(msg, flags uint16, attrs []byte) nlbatch.Request {
	b := []byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}
	return nlbatch.Request{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | msg, Flags: flags, Payload: append(b, attrs...)}
}

var begin, end = bound(unix.NFNL_MSG_BATCH_BEGIN), bound(unix.NFNL_MSG_BATCH_END)

func bound(typ uint16) nlbatch.Request {
	b := []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}
	return nlbatch.Request{Type: typ, Payload: binary.BigEndian.AppendUint16(b, unix.NFNL_SUBSYS_NFTABLES)}
}

func appendData(b []byte, typ uint16, value []byte) []byte {
	return nlbatch.AppendNest(b, typ, func(b []byte) []byte { return nlbatch.AppendAttr(b, unix.NFTA_DATA_VALUE, value) })
}

// Nowhere stands for the verdict "return" where a chain is expected.
const Nowhere = "nowhere"

// appendVerdict appends a verdict. A verdict that leads to a chain contains the chain's name.
func appendVerdict(b []byte, code int32, chain string) []byte {
	if chain == Nowhere {
		code, chain = unix.NFT_RETURN, ""
	}
	return nlbatch.AppendNest(b, unix.NFTA_DATA_VERDICT, func(b []byte) []byte {
		b = nlbatch.AppendBigUint32(b, unix.NFTA_VERDICT_CODE, uint32(code))
		if chain != "" {
			b = nlbatch.AppendString(b, unix.NFTA_VERDICT_CHAIN, chain)
		}
		return b
	})
}

// Attrs are attributes by type.
type Attrs map[uint16][]byte

func familyOf(payload []byte) byte {
	if len(payload) == 0 {
		return unix.NFPROTO_UNSPEC
	}
	return payload[0]
}

func parse(payload []byte) (Attrs, error) { return nested(payload[min(len(payload), nfgenHeaderLen):]) }

func nested(b []byte) (Attrs, error) {
	a := Attrs{}
	err := nlbatch.EachAttr(b, func(typ uint16, v []byte) error { a[typ] = v; return nil })
	return a, err
}

// Text returns the value of a text attribute.
func (a Attrs) Text(typ uint16) string { return nlbatch.String(a[typ]) }

// number returns 0 if the attribute is missing.
func (a Attrs) number(typ uint16, err *error) uint32 {
	v, has := a[typ]
	if !has {
		return 0
	}
	n, wrong := nlbatch.BigUint32(v)
	*err = errors.Join(*err, wrong)
	return n
}

// Number returns the value of a numeric attribute.
func (a Attrs) Number(typ uint16) uint32 {
	n, _ := nlbatch.BigUint32(a[typ])
	return n
}

// Value returns the bytes of a data attribute.
func (a Attrs) Value(typ uint16) []byte { return a.Nest(typ)[unix.NFTA_DATA_VALUE] }

// Nest returns the attributes nested in an attribute.
func (a Attrs) Nest(typ uint16) Attrs {
	inner, _ := nested(a[typ])
	return inner
}
