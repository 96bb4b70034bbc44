package conntrack

import (
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Since Linux 5.8 a walk can ask for some entries only: those whose tuple agrees with the one in the request in the parts that a
// filter names (net/netfilter/nf_internals.h). Older kernels ignore the filter and send everything.
const (
	attrFilter       = 25
	filterOfOriginal = 1
	compareProtocol  = 1 << 3
)

// ofProtocol selects the entries of one protocol. Most of a table is TCP, which the agent does not need.
func ofProtocol(p inet.Protocol) []byte {
	attrs := nlbatch.AppendNest(nil, attrOriginal, func(b []byte) []byte {
		return nlbatch.AppendNest(b, tupleProtocol, func(b []byte) []byte {
			return nlbatch.AppendUint8(b, protocolNumber, uint8(p))
		})
	})
	return nlbatch.AppendNest(attrs, attrFilter, func(b []byte) []byte {
		return nlbatch.AppendUint32(b, filterOfOriginal, compareProtocol)
	})
}
