package nft

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Table is the name of the table, of family inet.
const Table = "kube-ipvs"

// Constants of include/uapi/linux/netfilter/nf_tables.h that golang.org/x/sys/unix lacks.
const (
	setDescConcat  = 2
	setFieldLength = 1
	setElemKeyEnd  = 10
	setCount       = 20
	flagConcat     = 0x80
	// randomFully is NF_NAT_RANGE_PROTO_RANDOM_FULLY.
	randomFully = 1 << 4
)

const nfgenHeaderLen = 4

// request returns a request that starts with the netfilter header.
func request(msg, flags uint16, attrs []byte) nlbatch.Request {
	b := []byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}
	return nlbatch.Request{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | msg, Flags: flags, Payload: append(b, attrs...)}
}

// The messages that begin and end a transaction.
var begin, end = bound(unix.NFNL_MSG_BATCH_BEGIN), bound(unix.NFNL_MSG_BATCH_END)

func bound(typ uint16) nlbatch.Request {
	b := []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}
	return nlbatch.Request{Type: typ, Payload: binary.BigEndian.AppendUint16(b, unix.NFNL_SUBSYS_NFTABLES)}
}

func appendBigUint32(b []byte, typ uint16, v uint32) []byte {
	return nlbatch.AppendAttr(b, typ, binary.BigEndian.AppendUint32(nil, v))
}

// appendData appends a value in the format of rules and elements.
func appendData(b []byte, typ uint16, value []byte) []byte {
	return nlbatch.AppendNest(b, typ, func(b []byte) []byte { return nlbatch.AppendAttr(b, unix.NFTA_DATA_VALUE, value) })
}

// eachAttr iterates over the attributes after the netfilter header.
func eachAttr(payload []byte, handle func(uint16, []byte) error) error {
	return nlbatch.EachAttr(payload[min(len(payload), nfgenHeaderLen):], handle)
}
