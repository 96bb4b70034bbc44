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

// appendElement appends an element with the line number by which the kernel will name it if it refuses it.
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

// checkElement refuses what would not arrive in the kernel as it was meant.
func checkElement(e kernel.Element) error {
	switch {
	case !e.Addr.IsValid():
		return errors.New("it has no address")
	case e.Addr.Is4In6() || e.Addr2.Is4In6():
		return errors.New("an address is IPv4 written as IPv6")
	case e.Protocol == 0 && (e.Port != 0 || e.Addr2.IsValid()):
		return errors.New("it has no protocol")
	}
	return nil
}

// decodeElement reads one element of one of our types.
func decodeElement(b []byte) (kernel.Element, error) {
	var e kernel.Element
	err := nlbatch.EachAttr(b, func(typ uint16, v []byte) (err error) {
		switch typ {
		case nl.IPSET_ATTR_IP:
			e.Addr, err = decodeAddr(v)
		case nl.IPSET_ATTR_IP2:
			e.Addr2, err = decodeAddr(v)
		case nl.IPSET_ATTR_PORT:
			e.Port, err = nlbatch.BigUint16(v)
		case nl.IPSET_ATTR_PROTO:
			var p uint8
			p, err = nlbatch.Uint8(v)
			e.Protocol = inet.Protocol(p)
		}
		return err
	})
	if err == nil && !e.Addr.IsValid() {
		err = errors.New("it has no address")
	}
	if err != nil {
		return kernel.Element{}, fmt.Errorf("decode element: %w", err)
	}
	return e, nil
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
