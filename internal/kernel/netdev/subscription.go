package netdev

import (
	"encoding/binary"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// eventSize is large enough for any event, even a link with many virtual functions.
	eventSize = 64 << 10
	// eventBuffer is the receive buffer: each address of the backend's own batches returns as an event.
	eventBuffer = 8 << 20
)

// subscription is a socket that receives the events of links, addresses and unicast routes in order. The netlink library's subscriptions use
// one socket per kind, end at the first overflow, and allocate 64 KiB per event.
type subscription struct {
	file *os.File // uses the runtime's poller: closing it ends a waiting receive
	buf  []byte
}

func subscribe() (*subscription, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket for events: %w", err)
	}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, withoutLocalRoutes()); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("filter events: %w", err)
	}
	groups := uint32(unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR | unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV6_ROUTE)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("subscribe to links, addresses and routes: %w", err)
	}
	// Requires CAP_NET_ADMIN; otherwise more events are lost, which receive reports.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, eventBuffer)
	return &subscription{file: os.NewFile(uintptr(fd), "netlink events"), buf: make([]byte, eventSize)}, nil
}

// withoutLocalRoutes drops the events of routes that are not unicast. The kernel creates such routes for every address on kube-ipvs0, so
// they would double the events of the backend's own batches.
func withoutLocalRoutes() *unix.SockFprog {
	const accept, drop = 1<<32 - 1, 0
	newRoute, delRoute := inHostOrder(unix.RTM_NEWROUTE), inHostOrder(unix.RTM_DELROUTE)
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: headerType},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: newRoute, Jt: 2},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: delRoute, Jt: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: accept},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: unix.SizeofNlMsghdr + routeType},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.RTN_UNICAST, Jf: 1},
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

// receive waits for events. They are valid until the next call.
func (s *subscription) receive() ([]syscall.NetlinkMessage, error) {
	conn, err := s.file.SyscallConn()
	if err != nil {
		return nil, err
	}
	var n int
	var from unix.Sockaddr
	var received error
	err = conn.Read(func(fd uintptr) bool {
		n, from, received = unix.Recvfrom(int(fd), s.buf, 0)
		return received != unix.EAGAIN
	})
	if err != nil {
		return nil, err
	}
	if received != nil {
		return nil, received
	}
	if kernel, ok := from.(*unix.SockaddrNetlink); !ok || kernel.Pid != 0 {
		return nil, nil // from another process
	}
	return syscall.ParseNetlinkMessage(s.buf[:n])
}

func (s *subscription) close() { _ = s.file.Close() }
