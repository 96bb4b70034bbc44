package nlbatch

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// eventSize is enough for the largest event: a link with many virtual functions.
const eventSize = 64 << 10

// Subscription is a socket that receives the kernel's events of several groups in order. The netlink library's subscriptions use one socket
// per kind, end at the first overflow, and allocate 64 KiB per event.
type Subscription struct {
	file *os.File // uses the runtime's poller: closing it ends a waiting Receive
	buf  []byte
}

// Subscribe subscribes to the groups of a bit mask, in the network namespace of the calling thread. filter drops events in the kernel; nil
// drops none. Without CAP_NET_ADMIN, the receive buffer is smaller than requested, and more events are lost.
func Subscribe(protocol int, groups uint32, buffer int, filter *unix.SockFprog) (*Subscription, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket for events: %w", err)
	}
	if filter != nil {
		if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, filter); err != nil {
			_ = unix.Close(fd)
			return nil, fmt.Errorf("filter events: %w", err)
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("subscribe to events: %w", err)
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer)
	return &Subscription{file: os.NewFile(uintptr(fd), "netlink events"), buf: make([]byte, eventSize)}, nil
}

// Receive waits for events. They are valid until the next call. ENOBUFS means that events were lost, but the subscription is still valid.
func (s *Subscription) Receive() ([]syscall.NetlinkMessage, error) {
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
	if !fromKernel(from) {
		return nil, nil // from another process
	}
	return syscall.ParseNetlinkMessage(s.buf[:n])
}

// Close ends the subscription, and a waiting Receive.
func (s *Subscription) Close() error { return s.file.Close() }
