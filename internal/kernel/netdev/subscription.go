package netdev

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// eventBuffer is the size of the receive buffer. The kernel also sends an event for each address in the backend's own batches.
const eventBuffer = 8 << 20

const groups = unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR | unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV6_ROUTE |
	1<<(unix.RTNLGRP_NEXTHOP-1)

func subscribe() (*nlbatch.Subscription, error) {
	return nlbatch.Subscribe(unix.NETLINK_ROUTE, groups, eventBuffer, withoutLocalRoutes())
}

// withoutLocalRoutes returns a filter that drops the events of routes that are neither unicast nor the agent's. The kernel creates such routes
// for every address on kube-ipvs0, so they would double the events of the backend's own batches.
func withoutLocalRoutes() *unix.SockFprog {
	const accept, drop = 1<<32 - 1, 0
	newRoute, delRoute := inHostOrder(unix.RTM_NEWROUTE), inHostOrder(unix.RTM_DELROUTE)
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: headerType},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: newRoute, Jt: 2},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: delRoute, Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: accept},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: unix.SizeofNlMsghdr + routeType},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.RTN_UNICAST, Jt: 2},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: unix.SizeofNlMsghdr + routeProtocol},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: kernel.RouteProtocol, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: accept},
		{Code: unix.BPF_RET | unix.BPF_K, K: drop},
	}
	return &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
}

// headerType is the offset of the type in a netlink header.
const headerType = 4

// inHostOrder converts a 16-bit value in host order to the value that a filter loads.
func inHostOrder(v uint16) uint32 {
	return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, v)))
}
