// Package sockopt reads netfilter's socket options. Reading an option takes one system call instead of a process or a dump.
//
// May import: inet, the standard library and golang.org/x/sys/unix.
package sockopt

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

// Socket reads options for one family in the network namespace in which it was opened.
type Socket struct {
	fd    int
	level int
}

// Open opens a socket in the network namespace of the calling thread.
func Open(f inet.Family) (*Socket, error) {
	domain, level := unix.AF_INET, unix.IPPROTO_IP
	if f == inet.IPv6 {
		domain, level = unix.AF_INET6, unix.IPPROTO_IPV6
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s socket: %w", f, err)
	}
	return &Socket{fd: fd, level: level}, nil
}

// Get sends the contents of buf, which must have the size that the kernel expects, and overwrites them with the answer.
func (s *Socket) Get(option int, buf []byte) error {
	length := uint32(len(buf))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.fd), uintptr(s.level), uintptr(option),
		uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return fmt.Errorf("getsockopt %d: %w", option, errno)
	}
	return nil
}

// Close closes the socket.
func (s *Socket) Close() error { return unix.Close(s.fd) }
