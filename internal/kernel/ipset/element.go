package ipset

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// If the kernel rejects an element, its error contains the line number.
func appendElement(b []byte, e kernel.Element, line uint32) []byte {
	return nlbatch.AppendNest(b, nl.IPSET_ATTR_DATA, func(b []byte) []byte {
		b = appendAddr(b, nl.IPSET_ATTR_IP, e.Addr)
		if e.Protocol != 0 {
			b = appendBigUint16(b, nl.IPSET_ATTR_PORT, e.Port)
			b = nlbatch.AppendUint8(b, nl.IPSET_ATTR_PROTO, uint8(e.Protocol))
		}
		if e.Addr2.IsValid() {
			b = appendAddr(b, nl.IPSET_ATTR_IP2, e.Addr2)
		}
		if e.Bits2 != 0 {
			b = nlbatch.AppendUint8(b, nl.IPSET_ATTR_CIDR2, e.Bits2)
		}
		return nlbatch.AppendUint32(b, nl.IPSET_ATTR_LINENO, line)
	})
}

func appendAddr(b []byte, typ uint16, a netip.Addr) []byte {
	return nlbatch.AppendNest(b, typ, func(b []byte) []byte {
		version := uint16(nl.IPSET_ATTR_IPADDR_IPV6)
		if a.Is4() {
			version = nl.IPSET_ATTR_IPADDR_IPV4
		}
		return nlbatch.AppendAttr(b, version|nl.NLA_F_NET_BYTEORDER, a.AsSlice())
	})
}

// checkElement rejects elements that the kernel would store differently.
func checkElement(e kernel.Element) error {
	switch {
	case !e.Addr.IsValid():
		return errors.New("no address")
	case e.Addr.Is4In6() || e.Addr2.Is4In6():
		return errors.New("an address is an IPv4-mapped IPv6 address")
	case e.Protocol == 0 && (e.Port != 0 || e.Addr2.IsValid()):
		return errors.New("no protocol")
	case e.Bits2 != 0:
		return checkRange(e.Addr2, int(e.Bits2))
	}
	return nil
}

// checkRange rejects a range that the kernel would reject, or store with its host bits cleared.
func checkRange(a netip.Addr, bits int) error {
	r := netip.PrefixFrom(a, bits)
	if !r.IsValid() {
		return fmt.Errorf("range %s/%d has no address or too many bits", a, bits)
	}
	if r != r.Masked() {
		return fmt.Errorf("range %s has host bits set; use %s", r, r.Masked())
	}
	return nil
}

// ok is false for an element that excludes its range from the set ("nomatch"), because such an element is not a member.
func decodeElement(typ kernel.SetType, b []byte) (e kernel.Element, ok bool, err error) {
	flags := uint32(0)
	err = nlbatch.EachAttr(b, func(attr uint16, v []byte) (err error) {
		switch attr {
		case nl.IPSET_ATTR_IP:
			e.Addr, err = decodeAddr(v)
		case nl.IPSET_ATTR_IP2:
			e.Addr2, err = decodeAddr(v)
		case nl.IPSET_ATTR_CIDR2:
			e.Bits2, err = nlbatch.Uint8(v)
		case nl.IPSET_ATTR_PORT:
			e.Port, err = nlbatch.BigUint16(v)
		case nl.IPSET_ATTR_PROTO:
			var p uint8
			p, err = nlbatch.Uint8(v)
			e.Protocol = inet.Protocol(p)
		case nl.IPSET_ATTR_CADT_FLAGS:
			flags, err = nlbatch.BigUint32(v)
		}
		return err
	})
	if err == nil {
		err = complete(typ, &e)
	}
	if err != nil {
		return kernel.Element{}, false, fmt.Errorf("decode element: %w", err)
	}
	return e, flags&nl.IPSET_FLAG_NOMATCH == 0, nil
}

// The kernel may omit the prefix length of a single address.
func complete(typ kernel.SetType, e *kernel.Element) error {
	full := e.Addr2.BitLen()
	switch {
	case !e.Addr.IsValid():
		return errors.New("no address")
	case typ != kernel.HashIPPortNet:
		e.Bits2 = 0
	case !e.Addr2.IsValid():
		return errors.New("no range")
	case int(e.Bits2) > full:
		return fmt.Errorf("range length %d exceeds %d bits", e.Bits2, full)
	case e.Bits2 == 0:
		e.Bits2 = uint8(full)
	}
	return nil
}

func decodeAddr(b []byte) (a netip.Addr, err error) {
	err = nlbatch.EachAttr(b, func(_ uint16, v []byte) error {
		var ok bool
		if a, ok = netip.AddrFromSlice(v); !ok {
			return fmt.Errorf("address of %d bytes", len(v))
		}
		return nil
	})
	return a, err
}
