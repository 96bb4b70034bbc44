package cluster

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// From returns the source address and port that the server saw.
func (r Reply) From() netip.AddrPort { return netip.AddrPortFrom(r.Source, r.Port) }

// SendStrayTCP sends segments of this host's connection with sequence numbers far outside the window.
func (h *Host) SendStrayTCP(from, to netip.AddrPort, n int) error {
	domain := unix.AF_INET
	if to.Addr().Is6() {
		domain = unix.AF_INET6
	}
	return h.Do(func() error {
		fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		if err != nil {
			return fmt.Errorf("raw socket: %w", err)
		}
		defer unix.Close(fd)
		if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(from.Addr(), 0))); err != nil {
			return fmt.Errorf("bind %s: %w", from.Addr(), err)
		}
		for i := range n {
			segment := strayTCP(from, to, uint32(i+1)*500_000_000)
			if err := unix.Sendto(fd, segment, 0, sockaddr(netip.AddrPortFrom(to.Addr(), 0))); err != nil {
				return fmt.Errorf("send to %s: %w", to, err)
			}
			time.Sleep(5 * time.Millisecond)
		}
		return nil
	})
}

func strayTCP(from, to netip.AddrPort, sequence uint32) []byte {
	const headerLen, ackPush, window = 20, 0x18, 1000
	b := append(make([]byte, headerLen), "stray"...)
	binary.BigEndian.PutUint16(b[0:], from.Port())
	binary.BigEndian.PutUint16(b[2:], to.Port())
	binary.BigEndian.PutUint32(b[4:], sequence)
	binary.BigEndian.PutUint32(b[8:], sequence)
	b[12], b[13] = headerLen/4<<4, ackPush
	binary.BigEndian.PutUint16(b[14:], window)
	binary.BigEndian.PutUint16(b[16:], tcpChecksum(from.Addr(), to.Addr(), b))
	return b
}

func tcpChecksum(from, to netip.Addr, segment []byte) uint16 {
	sum := uint32(unix.IPPROTO_TCP) + uint32(len(segment))
	add := func(b []byte) {
		for ; len(b) > 1; b = b[2:] {
			sum += uint32(binary.BigEndian.Uint16(b))
		}
		if len(b) == 1 {
			sum += uint32(b[0]) << 8
		}
	}
	add(from.AsSlice())
	add(to.AsSlice())
	add(segment)
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
