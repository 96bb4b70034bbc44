package ipset

import (
	"encoding/binary"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// The protocol is defined in include/uapi/linux/netfilter/ipset/ip_set.h. The numbers come from the netlink library if it defines them.
const (
	cmdProtocol = nl.IPSET_CMD_PROTOCOL
	cmdList     = nl.IPSET_CMD_LIST
	cmdAdd      = nl.IPSET_CMD_ADD
	cmdTest     = nl.IPSET_CMD_TEST
	cmdDel      = nl.IPSET_CMD_DEL

	// attrBitmask extends the netmask. The netlink library does not define it.
	attrBitmask = 27

	// flagHeaderOnly requests sets without their members.
	flagHeaderOnly = 1 << 2

	nfgenHeaderLen = nl.SizeofNfgenmsg
)

func request(cmd uint16, attrs []byte) nlbatch.Request {
	b := []byte{unix.AF_INET, nl.NFNETLINK_V0, 0, 0}
	b = nlbatch.AppendUint8(b, nl.IPSET_ATTR_PROTOCOL, nl.IPSET_PROTOCOL)
	return nlbatch.Request{Type: unix.NFNL_SUBSYS_IPSET<<8 | cmd, Payload: append(b, attrs...)}
}

func appendBigUint16(b []byte, typ, v uint16) []byte {
	return nlbatch.AppendAttr(b, typ|nl.NLA_F_NET_BYTEORDER, binary.BigEndian.AppendUint16(nil, v))
}

func appendBigUint32(b []byte, typ uint16, v uint32) []byte {
	return nlbatch.AppendAttr(b, typ|nl.NLA_F_NET_BYTEORDER, binary.BigEndian.AppendUint32(nil, v))
}

// eachAttr iterates over the attributes after the netfilter header.
func eachAttr(payload []byte, handle func(uint16, []byte) error) error {
	return nlbatch.EachAttr(payload[min(len(payload), nfgenHeaderLen):], handle)
}
