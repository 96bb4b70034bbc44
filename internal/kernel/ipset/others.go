package ipset

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

const maxOthers = 1 << 16

// ReadOthers reads the sets of other programs: those whose names do not begin with the prefix.
func ReadOthers(ctx context.Context, prefix string) (all map[string]kernel.OtherSet, err error) {
	b, err := New()
	if errors.Is(err, kernel.ErrUnavailable) {
		return nil, nil // without ipset, no rule can use a set
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	headers, err := b.headers(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("read sets: %w", err)
	}
	all = map[string]kernel.OtherSet{}
	for _, h := range headers {
		if strings.HasPrefix(h.Name, prefix) {
			continue
		}
		set, err := b.other(ctx, h)
		if errors.Is(err, unix.ENOENT) {
			continue // the set has just been destroyed
		}
		if err != nil {
			return nil, fmt.Errorf("read set %s: %w", h.Name, err)
		}
		all[h.Name] = set
	}
	return all, nil
}

func (b *Backend) other(ctx context.Context, h header) (set kernel.OtherSet, err error) {
	_, set.Type, _ = strings.Cut(string(h.baseType()), ":")
	switch {
	case h.elements > maxOthers:
		set.Unread = fmt.Sprintf("it has %d elements", h.elements)
		return set, nil
	case strings.Contains(string(h.Type), "mask"):
		set.Unread = "it has a netmask or bitmask"
		return set, nil
	}
	err = b.conn.Walk(ctx, request(cmdList, nlbatch.AppendString(nil, nl.IPSET_ATTR_SETNAME, h.Name)), func(payload []byte) error {
		return eachAttr(payload, func(attr uint16, v []byte) error {
			if attr != nl.IPSET_ATTR_ADT {
				return nil
			}
			return nlbatch.EachAttr(v, func(_ uint16, v []byte) error {
				e, err := decodeOther(v)
				set.Elements = append(set.Elements, e)
				return err
			})
		})
	})
	return set, err
}

func decodeOther(b []byte) (e kernel.OtherElement, err error) {
	lengths := [2]int{-1, -1}
	err = nlbatch.EachAttr(b, func(attr uint16, v []byte) (err error) {
		switch attr {
		case nl.IPSET_ATTR_IP:
			e.First, err = decodeAddr(v)
		case nl.IPSET_ATTR_IP_TO:
			e.Last, err = decodeAddr(v)
		case nl.IPSET_ATTR_IP2:
			e.First2, err = decodeAddr(v)
		case nl.IPSET_ATTR_IP2_TO:
			e.Last2, err = decodeAddr(v)
		case nl.IPSET_ATTR_CIDR, nl.IPSET_ATTR_CIDR2:
			var n uint8
			n, err = nlbatch.Uint8(v)
			lengths[map[uint16]int{nl.IPSET_ATTR_CIDR2: 1}[attr]] = int(n)
		case nl.IPSET_ATTR_PORT:
			e.Port.First, err = nlbatch.BigUint16(v)
		case nl.IPSET_ATTR_PORT_TO:
			e.Port.Last, err = nlbatch.BigUint16(v)
		case nl.IPSET_ATTR_PROTO:
			var n uint8
			n, err = nlbatch.Uint8(v)
			e.Protocol = inet.Protocol(n)
		case nl.IPSET_ATTR_MARK:
			e.Mark, err = nlbatch.BigUint32(v)
		case nl.IPSET_ATTR_IFACE:
			e.Interface = nlbatch.String(v)
		case nl.IPSET_ATTR_NAME:
			e.Set = nlbatch.String(v)
		case nl.IPSET_ATTR_CADT_FLAGS:
			var flags uint32
			flags, err = nlbatch.BigUint32(v)
			e.Not = flags&nl.IPSET_FLAG_NOMATCH != 0
		}
		return err
	})
	e.Port.Last = max(e.Port.First, e.Port.Last)
	e.First, e.Last = rangeOf(e.First, e.Last, lengths[0])
	e.First2, e.Last2 = rangeOf(e.First2, e.Last2, lengths[1])
	return e, err
}

// The kernel sends either both addresses of a range or a prefix.
func rangeOf(first, last netip.Addr, length int) (netip.Addr, netip.Addr) {
	switch {
	case !first.IsValid() || last.IsValid():
		return first, last
	case length < 0:
		return first, first
	}
	prefix, err := first.Prefix(length)
	if err != nil {
		return first, first
	}
	bytes := prefix.Addr().AsSlice()
	for bit := length; bit < 8*len(bytes); bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ = netip.AddrFromSlice(bytes)
	return prefix.Addr(), last
}
