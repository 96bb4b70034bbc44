package conntrack

import (
	"encoding/binary"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// A walk can request only some of the entries. Since Linux 5.8, a filter names the fields in which an entry's tuple must equal the
// request's (net/netfilter/nf_internals.h). Since 5.15, a request can also select entries by their status. Older kernels ignore unknown
// filters and send more entries. Address filters are not used, because the kernel compared IPv6 addresses incorrectly for years.
const (
	attrStatusMask   = 26
	attrFilter       = 25
	filterOfOriginal = 1
	compareProtocol  = 1 << 3
)

// wanted selects the entries of a protocol that may be deleted. It excludes established TCP connections, which fill most of a table
// and are never deleted.
func wanted(p inet.Protocol) []byte {
	attrs := nlbatch.AppendNest(nil, attrOriginal, func(b []byte) []byte {
		return nlbatch.AppendNest(b, tupleProtocol, func(b []byte) []byte {
			return nlbatch.AppendUint8(b, protocolNumber, uint8(p))
		})
	})
	attrs = nlbatch.AppendNest(attrs, attrFilter, func(b []byte) []byte {
		return nlbatch.AppendUint32(b, filterOfOriginal, compareProtocol)
	})
	if p != inet.TCP {
		return attrs
	}
	attrs = nlbatch.AppendAttr(attrs, attrStatus, binary.BigEndian.AppendUint32(nil, 0))
	return nlbatch.AppendAttr(attrs, attrStatusMask, binary.BigEndian.AppendUint32(nil, statusSeenReply))
}
