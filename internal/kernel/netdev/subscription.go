package netdev

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// eventSize holds the largest event: that of a link with many virtual functions.
	eventSize = 64 << 10
	// eventBuffer is the receive buffer: each address of the backend's own batches comes back as an event.
	eventBuffer = 8 << 20
)

// subscription is a socket that receives the events of links and addresses in order. (netlink's own subscriptions are one
// socket per kind, end at the first overflow, and allocate 64 KiB per event.)
type subscription struct {
	file *os.File // the runtime's poller: closing it ends a waiting receive
	buf  []byte
}

func subscribe() (*subscription, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket for events: %w", err)
	}
	groups := uint32(unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("subscribe to links and addresses: %w", err)
	}
	// Not allowed without CAP_NET_ADMIN; then more events are lost, which receive reports.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, eventBuffer)
	return &subscription{file: os.NewFile(uintptr(fd), "netlink events"), buf: make([]byte, eventSize)}, nil
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
