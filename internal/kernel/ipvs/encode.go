package ipvs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"

	lib "github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

func addressFamily(f inet.Family) uint16 {
	if f == inet.IPv4 {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func checkAddress(a netip.AddrPort) error {
	if !a.Addr().IsValid() {
		return errors.New("no address")
	}
	if a.Addr().Is4In6() {
		return errors.New("address is an IPv4-mapped IPv6 address")
	}
	return nil
}

func appendKey(b []byte, k kernel.ServerKey) []byte {
	b = nlbatch.AppendUint16(b, svcAddressFamily, addressFamily(k.Family()))
	b = nlbatch.AppendUint16(b, svcProtocol, uint16(k.Protocol))
	b = nlbatch.AppendAddr(b, svcAddress, k.Addr.Addr())
	return nlbatch.AppendBigUint16(b, svcPort, k.Addr.Port())
}

// requestSize is enough for the attributes of any request, so encoding allocates only once.
const requestSize = 160

func encodeKey(k kernel.ServerKey) []byte {
	return nlbatch.AppendNest(make([]byte, 0, requestSize), attrService, func(b []byte) []byte { return appendKey(b, k) })
}

// encodeServer encodes all attributes of a virtual server. The kernel requires them for both creation and update.
func encodeServer(s kernel.Server) ([]byte, error) {
	if err := checkAddress(s.Key.Addr); err != nil {
		return nil, err
	}
	mask, err := netmask(s)
	if err != nil {
		return nil, err
	}
	return nlbatch.AppendNest(make([]byte, 0, requestSize), attrService, func(b []byte) []byte {
		b = appendKey(b, s.Key)
		b = nlbatch.AppendString(b, svcScheduler, s.Scheduler)
		b = nlbatch.AppendAttr(b, svcFlags, flagsAndMask(s.Flags))
		b = nlbatch.AppendUint32(b, svcTimeout, s.Timeout)
		return nlbatch.AppendAttr(b, svcNetmask, mask)
	}), nil
}

// flagsAndMask sets the given flags and clears all others.
func flagsAndMask(flags uint32) []byte {
	b := binary.NativeEndian.AppendUint32(nil, flags)
	return binary.NativeEndian.AppendUint32(b, allFlags)
}

// netmask is a mask for IPv4 and a prefix length for IPv6. A length of 0 means the whole address, because an IPv4 server with mask 0 would
// treat all clients as one, and the kernel rejects 0 for IPv6.
func netmask(s kernel.Server) ([]byte, error) {
	family, length := s.Key.Family(), int(s.MaskBits)
	if length == 0 {
		length = family.Bits()
	}
	if length > family.Bits() {
		return nil, fmt.Errorf("mask of %d bits is too long for %s", length, family)
	}
	if family == inet.IPv6 {
		return binary.NativeEndian.AppendUint32(nil, uint32(length)), nil
	}
	return binary.BigEndian.AppendUint32(nil, fullMaskIPv4<<(32-length)), nil
}

// maskBits is the inverse of netmask. For a foreign, non-contiguous IPv4 mask, it counts the bits.
func maskBits(f inet.Family, v []byte) (uint8, error) {
	if f == inet.IPv6 {
		n, err := nlbatch.Uint32(v)
		return uint8(min(n, 128)), err
	}
	m, err := nlbatch.BigUint32(v)
	return uint8(bits.OnesCount32(m)), err
}

// encodeDestination encodes all attributes of a destination. The kernel requires them even if only the weight changes.
func encodeDestination(d kernel.ServerDestination) ([]byte, error) {
	return encodeDest(d, func(b []byte) []byte {
		b = nlbatch.AppendUint32(b, destForwarding, lib.ConnectionFlagMasq)
		b = nlbatch.AppendUint32(b, destWeight, d.Weight)
		b = nlbatch.AppendUint32(b, destUpperThreshold, d.Upper)
		return nlbatch.AppendUint32(b, destLowerThreshold, d.Lower)
	})
}

func encodeDestinationKey(d kernel.ServerDestination) ([]byte, error) {
	return encodeDest(d, func(b []byte) []byte { return b })
}

func encodeDest(d kernel.ServerDestination, more func([]byte) []byte) ([]byte, error) {
	if err := checkAddress(d.Server.Addr); err != nil {
		return nil, fmt.Errorf("virtual server: %w", err)
	}
	if err := checkAddress(d.Addr); err != nil {
		return nil, err
	}
	return nlbatch.AppendNest(encodeKey(d.Server), attrDest, func(b []byte) []byte {
		b = nlbatch.AppendUint16(b, destAddressFamily, addressFamily(inet.FamilyOf(d.Addr.Addr())))
		b = nlbatch.AppendAddr(b, destAddress, d.Addr.Addr())
		b = nlbatch.AppendBigUint16(b, destPort, d.Addr.Port())
		return more(b)
	}), nil
}
