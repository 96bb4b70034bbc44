package nft

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

func keyOf(s kernel.Set) (wire.Key, error) {
	address := wire.Address(s.Family)
	switch s.Type {
	case kernel.HashIP:
		return wire.Key{address}, nil
	case kernel.HashIPPort:
		return wire.Key{address, wire.Protocol, wire.Port}, nil
	case kernel.HashIPPortIP, kernel.HashIPPortNet:
		return wire.Key{address, wire.Protocol, wire.Port, address}, nil
	}
	return nil, fmt.Errorf("type %q is not supported", s.Type)
}

// flagsOf sets EVAL for hash tables, although no rule adds elements. With this flag, a table grows as needed, up to its maximum size.
// Without it, the kernel allocates memory for the maximum size up front.
func flagsOf(t kernel.SetType) uint32 {
	if t == kernel.HashIPPortNet {
		return unix.NFT_SET_INTERVAL
	}
	return unix.NFT_SET_EVAL
}

func newSet(s kernel.Set) (nlbatch.Request, error) {
	key, err := keyOf(s)
	if err != nil {
		return nlbatch.Request{}, err
	}
	return wire.Set(s.Name).Create(unix.NLM_F_EXCL, wire.Layout{Flags: flagsOf(s.Type), Key: key, Size: s.MaxElem}), nil
}

// setOf is the inverse of newSet. The type is empty for a set that the agent does not use.
func setOf(l wire.ListedSet) kernel.Set {
	s := kernel.Set{Name: l.Name, MaxElem: l.Size}
	for _, f := range inet.Families {
		for _, t := range []kernel.SetType{kernel.HashIP, kernel.HashIPPort, kernel.HashIPPortIP, kernel.HashIPPortNet} {
			if key, _ := keyOf(kernel.Set{Type: t, Family: f}); key.Type() == l.Key && flagsOf(t) == l.Flags {
				s.Type, s.Family = t, f
			}
		}
	}
	return s
}

func encodeElement(s kernel.Set, e kernel.Element) (wire.Element, error) {
	if err := checkElement(s, e); err != nil {
		return wire.Element{}, err
	}
	key, last := e.Addr.AsSlice(), []byte(nil)
	if s.Type == kernel.HashIP {
		return wire.Element{Key: string(key)}, nil
	}
	key = append(key, byte(e.Protocol), 0, 0, 0, byte(e.Port>>8), byte(e.Port), 0, 0)
	switch s.Type {
	case kernel.HashIPPortIP:
		key = append(key, e.Addr2.AsSlice()...)
	case kernel.HashIPPortNet:
		last = append(append(last, key...), lastOf(netip.PrefixFrom(e.Addr2, int(e.Bits2)))...)
		key = append(key, e.Addr2.AsSlice()...)
	}
	return wire.Element{Key: string(key), Last: string(last)}, nil
}

func lastOf(r netip.Prefix) []byte {
	b := r.Addr().AsSlice()
	for bit := r.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	return b
}

// checkElement rejects elements that do not fit the key of the set, and elements that ipset rejects.
func checkElement(s kernel.Set, e kernel.Element) error {
	ofFamily := func(a netip.Addr) bool { return a.BitLen() == s.Family.Bits() }
	second := s.Type == kernel.HashIPPortIP || s.Type == kernel.HashIPPortNet
	switch {
	case !ofFamily(e.Addr):
		return fmt.Errorf("its address is not %s", s.Family)
	case (e.Protocol != 0) != (s.Type != kernel.HashIP) || e.Protocol == 0 && e.Port != 0:
		return fmt.Errorf("its port does not fit a set of type %s", s.Type)
	case e.Addr2.IsValid() != second || second && !ofFamily(e.Addr2) || (e.Bits2 != 0) != (s.Type == kernel.HashIPPortNet):
		return fmt.Errorf("its second address does not fit a set of type %s", s.Type)
	case s.Type == kernel.HashIP && e.Addr.IsUnspecified():
		return errors.New("it has a null address")
	}
	if r := netip.PrefixFrom(e.Addr2, int(e.Bits2)); s.Type == kernel.HashIPPortNet && (!r.IsValid() || r != r.Masked()) {
		return fmt.Errorf("its range %s/%d has too many bits, or host bits set", e.Addr2, e.Bits2)
	}
	return nil
}

// decodeElement is the inverse of encodeElement. It returns false for elements that no Element can represent: ranges that are not prefixes, the
// range of all addresses, and ranges of virtual addresses or ports.
func decodeElement(s kernel.Set, listed wire.Element) (e kernel.Element, ok bool) {
	key, last := []byte(listed.Key), []byte(cmp.Or(listed.Last, listed.Key))
	n := s.Family.Bits() / 8
	fields, err := keyOf(s)
	if err != nil || len(key) != int(fields.Length()) {
		return e, false
	}
	e.Addr, _ = netip.AddrFromSlice(key[:n])
	if s.Type == kernel.HashIP {
		return e, true
	}
	e.Protocol, e.Port = inet.Protocol(key[n]), uint16(key[n+4])<<8|uint16(key[n+5])
	if s.Type == kernel.HashIPPort {
		return e, true
	}
	e.Addr2, _ = netip.AddrFromSlice(key[n+8:])
	if s.Type == kernel.HashIPPortIP {
		return e, true
	}
	if len(last) != len(key) || string(last[:n+8]) != string(key[:n+8]) {
		return e, false
	}
	for bits := s.Family.Bits(); bits > 0; bits-- {
		r := netip.PrefixFrom(e.Addr2, bits)
		if r == r.Masked() && string(lastOf(r)) == string(last[n+8:]) {
			e.Bits2 = uint8(bits)
			return e, true
		}
	}
	return e, false
}

// elementRequest returns one request for at most wire.MaxElements elements of one set.
func elementRequest(msg, flags uint16, s kernel.Set, elements ...kernel.Element) (nlbatch.Request, error) {
	var errs []error
	encoded := make([]wire.Element, len(elements))
	for i, e := range elements {
		code, err := encodeElement(s, e)
		encoded[i], errs = code, append(errs, err)
	}
	return wire.Set(s.Name).Request(msg, flags, encoded...), errors.Join(errs...)
}

// decodeInto adds elements to members. It sets stray if encodeElement could not have written one.
func decodeInto(members map[kernel.Element]struct{}, stray *bool, s kernel.Set) func(wire.Element) error {
	return func(listed wire.Element) error {
		if e, ok := decodeElement(s, listed); ok && checkElement(s, e) == nil {
			members[e] = struct{}{}
		} else {
			*stray = true
		}
		return nil
	}
}
