package ipset

import (
	"fmt"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

type header struct {
	kernel.Set
	elements uint32
	buckets  uint32 // of the hash table
	extras   []string
}

func (h header) baseType() kernel.SetType {
	base, _, _ := strings.Cut(string(h.Type), " ")
	return kernel.SetType(base)
}

// decodeHeader appends parameters other than type, family and maxelem to the type, so that the set never equals one of the agent's sets. A
// timeout, for example, would make members expire.
func decodeHeader(payload []byte) (header, error) {
	var h header
	if err := eachAttr(payload, h.attr); err != nil {
		return header{}, fmt.Errorf("decode set: %w", err)
	}
	h.Type = kernel.SetType(strings.Join(append([]string{string(h.Type)}, h.extras...), " "))
	return h, nil
}

func (h *header) attr(typ uint16, v []byte) error {
	switch typ {
	case nl.IPSET_ATTR_SETNAME:
		h.Name = nlbatch.String(v)
	case nl.IPSET_ATTR_TYPENAME:
		h.Type = kernel.SetType(nlbatch.String(v))
	case nl.IPSET_ATTR_FAMILY:
		return h.family(v)
	case nl.IPSET_ATTR_DATA:
		return nlbatch.EachAttr(v, h.parameter)
	}
	return nil
}

func (h *header) family(v []byte) error {
	af, err := nlbatch.Uint8(v)
	switch af {
	case unix.AF_INET:
		h.Family = inet.IPv4
	case unix.AF_INET6:
		h.Family = inet.IPv6
	}
	return err // some types, such as list:set, have no family
}

func (h *header) parameter(typ uint16, v []byte) (err error) {
	switch typ {
	case nl.IPSET_ATTR_MAXELEM:
		h.MaxElem, err = nlbatch.BigUint32(v)
	case nl.IPSET_ATTR_HASHSIZE:
		h.buckets, err = nlbatch.BigUint32(v)
	case nl.IPSET_ATTR_ELEMENTS:
		h.elements, err = nlbatch.BigUint32(v)
	case nl.IPSET_ATTR_TIMEOUT:
		h.extras = append(h.extras, "timeout")
	case nl.IPSET_ATTR_NETMASK:
		h.extras = append(h.extras, "netmask")
	case attrBitmask:
		h.extras = append(h.extras, "bitmask")
	case nl.IPSET_ATTR_CADT_FLAGS:
		return h.flags(v)
	}
	return err
}

func (h *header) flags(v []byte) error {
	set, err := nlbatch.BigUint32(v)
	for _, f := range []struct {
		bit  uint32
		name string
	}{
		{nl.IPSET_FLAG_WITH_COUNTERS, "counters"},
		{nl.IPSET_FLAG_WITH_COMMENT, "comment"},
		{nl.IPSET_FLAG_WITH_SKBINFO, "skbinfo"},
		{nl.IPSET_FLAG_WITH_FORCEADD, "forceadd"},
	} {
		if set&f.bit != 0 {
			h.extras = append(h.extras, f.name)
		}
	}
	return err
}

// ours reports whether kernel.Element can represent the elements of this type.
func ours(t kernel.SetType) bool {
	return t == kernel.HashIP || t == kernel.HashIPPort || t == kernel.HashIPPortIP || t == kernel.HashIPPortNet
}

func decodeMembers(typ kernel.SetType, payload []byte, members map[kernel.Element]struct{}) error {
	return eachAttr(payload, func(attr uint16, v []byte) error {
		if attr != nl.IPSET_ATTR_ADT {
			return nil
		}
		return nlbatch.EachAttr(v, func(_ uint16, data []byte) error {
			e, ok, err := decodeElement(typ, data)
			if ok {
				members[e] = struct{}{}
			}
			return err
		})
	})
}
