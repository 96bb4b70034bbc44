package machine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/doctor"
)

const (
	// arpTries is the number of ARP requests for an address. arpPatience is the time between them.
	arpTries    = 2
	arpPatience = 250 * time.Millisecond
)

// probe asks whether another machine has an address of this node. The sender address of the requests is 0.0.0.0 (RFC 5227), so no
// machine changes its neighbor entries.
func probe(p *doctor.Probed) error {
	own, err := net.ParseMAC(p.Interface.MAC)
	if err != nil || len(own) != macLength {
		return fmt.Errorf("%s has the MAC address %q", p.Interface.Name, p.Interface.MAC)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open packet socket: %w", err)
	}
	socket := os.NewFile(uintptr(fd), "packet socket")
	defer socket.Close()
	everyone := &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ARP), Ifindex: p.Interface.Index, Halen: macLength, Addr: [8]byte{255, 255, 255, 255, 255, 255}}
	if err := unix.Bind(fd, everyone); err != nil {
		return fmt.Errorf("bind packet socket to %s: %w", p.Interface.Name, err)
	}
	for range arpTries {
		if err := unix.Sendto(fd, arpRequest(own, p.Address), 0, everyone); err != nil {
			return fmt.Errorf("send ARP request on %s: %w", p.Interface.Name, err)
		}
		if err := collect(socket, p); err != nil {
			return fmt.Errorf("read ARP packets on %s: %w", p.Interface.Name, err)
		}
	}
	return nil
}

func networkOrder(protocol uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, protocol))
}

// The layout of an ARP packet for IPv4 over Ethernet (RFC 826).
const (
	macLength      = 6
	arpLength      = 28
	senderMAC      = 8
	senderAddress  = 14
	targetAddress  = 24
	arpRequestCode = 1
)

// arpHeader specifies the types and lengths of the addresses.
var arpHeader = []byte{0, 1, 8, 0, macLength, 4}

// arpRequest returns an ARP request for an address. The sender address is 0.0.0.0.
func arpRequest(own net.HardwareAddr, target netip.Addr) []byte {
	b := make([]byte, arpLength)
	copy(b, arpHeader)
	b[7] = arpRequestCode
	copy(b[senderMAC:], own)
	copy(b[targetAddress:], target.AsSlice())
	return b
}

// collect adds the MAC addresses of machines that claim the address, until arpPatience has passed.
func collect(socket *os.File, p *doctor.Probed) error {
	if err := socket.SetReadDeadline(time.Now().Add(arpPatience)); err != nil {
		return err
	}
	b := make([]byte, 256)
	for {
		n, err := socket.Read(b)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return err
		}
		if mac, ok := claims(b[:n], p.Address); ok && !slices.Contains(p.MACs, mac) && len(p.MACs) < mostClaims {
			p.MACs = append(p.MACs, mac)
		}
	}
}

// mostClaims limits the MAC addresses that doctor reports for an address.
const mostClaims = 4

// claims returns the sender's MAC address if an ARP packet claims that the sender has the address.
func claims(b []byte, addr netip.Addr) (mac string, ok bool) {
	if len(b) < arpLength || !bytes.HasPrefix(b, arpHeader) || !bytes.Equal(b[senderAddress:senderAddress+4], addr.AsSlice()) {
		return "", false
	}
	return net.HardwareAddr(b[senderMAC : senderMAC+macLength]).String(), true
}
