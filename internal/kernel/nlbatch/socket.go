package nlbatch

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxDump is the size of the largest datagram that the kernel creates, other than a refusal. A refusal may be larger, because it may echo
	// the request.
	maxDump = 32 << 10
	// receiveBuffer is the requested receive buffer; without CAP_NET_ADMIN the kernel grants less.
	receiveBuffer = 4 << 20
)

type socket interface {
	// send passes the requests to the kernel, which handles them before send returns.
	send([]byte) error
	// receive reads one datagram from the kernel, or fails with os.ErrDeadlineExceeded. It calls deadline only if it has to wait.
	receive(b []byte, deadline func() time.Time) (int, error)
	// budget is the share of the receive buffer, in bytes, that the answers to one send may use.
	budget() int
	close() error
}

type netlinkSocket struct {
	fd   int
	room int
}

func openSocket(protocol int) (socket, error) { return openNetlink(protocol, false) }

func openStrictSocket(protocol int) (socket, error) { return openNetlink(protocol, true) }

func openNetlink(protocol int, strict bool) (socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	s := &netlinkSocket{fd: fd}
	if err := s.configure(); err != nil {
		_ = s.close()
		return nil, err
	}
	if strict {
		// Kernels before 4.20 lack this option, and do not filter.
		_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	}
	return s, nil
}

func (s *netlinkSocket) configure() error {
	if err := unix.Bind(s.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("bind netlink socket: %w", err)
	}
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
		// Request the size that an unprivileged process may set. budget reads the result.
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	}
	size, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
	if err != nil {
		return fmt.Errorf("read receive buffer size: %w", err)
	}
	s.room = size
	// Kernels before 4.12 lack these options, so their answers are longer and have no explanation.
	_ = unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	_ = unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	return nil
}

func (s *netlinkSocket) send(b []byte) error {
	err := unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	if errors.Is(err, unix.EMSGSIZE) && s.makeRoom(len(b)) == nil {
		err = unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}
	if err != nil {
		return fmt.Errorf("send netlink requests: %w", err)
	}
	return nil
}

// makeRoom makes the send buffer large enough for one message, because a transaction cannot be divided. The kernel doubles the requested size.
func (s *netlinkSocket) makeRoom(size int) error {
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size) == nil {
		return nil
	}
	return unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, size)
}

func (s *netlinkSocket) receive(b []byte, deadline func() time.Time) (int, error) {
	var until time.Time
	for {
		// MSG_TRUNC returns the datagram's real length.
		n, from, err := unix.Recvfrom(s.fd, b, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EAGAIN):
			if until.IsZero() {
				until = deadline()
			}
			if err := s.wait(until); err != nil {
				return 0, err
			}
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, err
		case n > len(b):
			return 0, fmt.Errorf("answer of %d bytes does not fit", n)
		case fromKernel(from):
			return n, nil
		}
	}
}

// fromKernel distinguishes the kernel's messages from other processes'.
func fromKernel(a unix.Sockaddr) bool {
	nl, ok := a.(*unix.SockaddrNetlink)
	return ok && nl.Pid == 0
}

func (s *netlinkSocket) wait(deadline time.Time) error {
	left := time.Until(deadline)
	if left <= 0 {
		return os.ErrDeadlineExceeded
	}
	fds := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}
	_, err := unix.Poll(fds, int(left.Milliseconds())+1)
	if err != nil && !errors.Is(err, unix.EINTR) {
		return err
	}
	return nil
}

func (s *netlinkSocket) budget() int { return s.room / 2 }

func (s *netlinkSocket) close() error { return unix.Close(s.fd) }
