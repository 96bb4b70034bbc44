package cluster

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Protocol is a transport protocol, spelled as in Kubernetes.
type Protocol string

// The protocols of Services.
const (
	TCP  Protocol = "TCP"
	UDP  Protocol = "UDP"
	SCTP Protocol = "SCTP"
)

// socket uses system calls, because package net does not support SCTP.
func (p Protocol) socket(f Family) (int, error) {
	domain := unix.AF_INET
	if f == V6 {
		domain = unix.AF_INET6
	}
	kind, number := unix.SOCK_STREAM, unix.IPPROTO_TCP
	switch p {
	case TCP:
	case UDP:
		kind, number = unix.SOCK_DGRAM, unix.IPPROTO_UDP
	case SCTP:
		number = unix.IPPROTO_SCTP
	default:
		return -1, fmt.Errorf("unknown protocol %q", p)
	}
	fd, err := unix.Socket(domain, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, number)
	if err != nil {
		return -1, fmt.Errorf("%s socket: %w", p, err)
	}
	if f == V6 {
		// With one socket per family, addresses are never IPv4-mapped.
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
	}
	return fd, nil
}

// Supported returns an error if the kernel does not support the protocol. Many kernels lack SCTP (EPROTONOSUPPORT) or
// require `modprobe sctp` first.
func Supported(p Protocol) error {
	fd, err := p.socket(V4)
	if err == nil {
		unix.Close(fd)
	}
	return err
}
