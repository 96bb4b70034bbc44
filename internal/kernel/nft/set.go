package nft

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Numbers of nft's data types, which tell it how to print elements. A concatenation uses 6 bits for each.
const (
	typeIPv4     = 7
	typeIPv6     = 8
	typeProtocol = 12
	typePort     = 13
	typeBits     = 6
)

// fieldsOf returns the types and lengths in bytes of the fields of a key. Each field is padded to 4 bytes.
func fieldsOf(s kernel.Set) (types, lengths []uint32, err error) {
	address := uint32(typeIPv4)
	if s.Family == inet.IPv6 {
		address = typeIPv6
	}
	size := addressBytes(s.Family)
	switch s.Type {
	case kernel.HashIP:
		return []uint32{address}, []uint32{size}, nil
	case kernel.HashIPPort:
		return []uint32{address, typeProtocol, typePort}, []uint32{size, 4, 4}, nil
	case kernel.HashIPPortIP, kernel.HashIPPortNet:
		return []uint32{address, typeProtocol, typePort, address}, []uint32{size, 4, 4, size}, nil
	}
	return nil, nil, fmt.Errorf("type %q is not supported", s.Type)
}

func keyType(types []uint32) (all uint32) {
	for _, t := range types {
		all = all<<typeBits | t
	}
	return all
}

func sum[N int | uint32](numbers []N) (all N) {
	for _, n := range numbers {
		all += n
	}
	return all
}

// flagsOf sets EVAL for hash tables, although no rule adds elements. Only with this flag does a table grow as needed, up to its size.
// Without it, the kernel allocates memory for the largest size.
func flagsOf(t kernel.SetType) uint32 {
	switch t {
	case kernel.HashIP:
		return unix.NFT_SET_EVAL
	case kernel.HashIPPortNet:
		return unix.NFT_SET_INTERVAL | flagConcat
	}
	return unix.NFT_SET_EVAL | flagConcat
}

func setNamed(name string) []byte {
	b := nlbatch.AppendString(nil, unix.NFTA_SET_TABLE, Table)
	return nlbatch.AppendString(b, unix.NFTA_SET_NAME, name)
}

func newSet(s kernel.Set) (nlbatch.Request, error) {
	types, lengths, err := fieldsOf(s)
	if err != nil {
		return nlbatch.Request{}, err
	}
	b := setNamed(s.Name)
	b = appendBigUint32(b, unix.NFTA_SET_FLAGS, flagsOf(s.Type))
	b = appendBigUint32(b, unix.NFTA_SET_KEY_TYPE, keyType(types))
	b = appendBigUint32(b, unix.NFTA_SET_KEY_LEN, sum(lengths))
	b = appendBigUint32(b, unix.NFTA_SET_ID, 1)
	b = nlbatch.AppendNest(b, unix.NFTA_SET_DESC, func(b []byte) []byte {
		b = appendBigUint32(b, unix.NFTA_SET_DESC_SIZE, s.MaxElem)
		if len(lengths) == 1 {
			return b
		}
		return nlbatch.AppendNest(b, setDescConcat, func(b []byte) []byte {
			for _, n := range lengths {
				b = nlbatch.AppendNest(b, unix.NFTA_LIST_ELEM, func(b []byte) []byte { return appendBigUint32(b, setFieldLength, n) })
			}
			return b
		})
	})
	return request(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE|unix.NLM_F_EXCL, b), nil
}

func deleteSet(name string) nlbatch.Request {
	return request(unix.NFT_MSG_DELSET, 0, setNamed(name))
}

// decodeSet parses a set. A set of a kind that the agent does not use has no type.
func decodeSet(payload []byte) (table string, s kernel.Set, err error) {
	var key, flags uint32
	err = eachAttr(payload, func(typ uint16, v []byte) (err error) {
		switch typ {
		case unix.NFTA_SET_TABLE:
			table = nlbatch.String(v)
		case unix.NFTA_SET_NAME:
			s.Name = nlbatch.String(v)
		case unix.NFTA_SET_FLAGS:
			flags, err = nlbatch.BigUint32(v)
		case unix.NFTA_SET_KEY_TYPE:
			key, err = nlbatch.BigUint32(v)
		case unix.NFTA_SET_DESC:
			return nlbatch.EachAttr(v, func(typ uint16, v []byte) (err error) {
				if typ == unix.NFTA_SET_DESC_SIZE {
					s.MaxElem, err = nlbatch.BigUint32(v)
				}
				return err
			})
		}
		return err
	})
	for _, f := range inet.Families {
		for _, t := range []kernel.SetType{kernel.HashIP, kernel.HashIPPort, kernel.HashIPPortIP, kernel.HashIPPortNet} {
			types, _, _ := fieldsOf(kernel.Set{Type: t, Family: f})
			if keyType(types) == key && flagsOf(t)&^flagConcat == flags&^flagConcat {
				s.Type, s.Family = t, f
			}
		}
	}
	return table, s, err
}

// encodeElement returns the key of an element, and for a range also the last key.
func encodeElement(s kernel.Set, e kernel.Element) (key, last []byte, err error) {
	if err := checkElement(s, e); err != nil {
		return nil, nil, err
	}
	key = e.Addr.AsSlice()
	if s.Type == kernel.HashIP {
		return key, nil, nil
	}
	key = append(key, byte(e.Protocol), 0, 0, 0, byte(e.Port>>8), byte(e.Port), 0, 0)
	switch s.Type {
	case kernel.HashIPPortIP:
		key = append(key, e.Addr2.AsSlice()...)
	case kernel.HashIPPortNet:
		last = append(append(last, key...), lastOf(netip.PrefixFrom(e.Addr2, int(e.Bits2)))...)
		key = append(key, e.Addr2.AsSlice()...)
	}
	return key, last, nil
}

func lastOf(r netip.Prefix) []byte {
	b := r.Addr().AsSlice()
	for bit := r.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	return b
}

// checkElement rejects elements that do not fit the key of the set, and those that ipset rejects.
func checkElement(s kernel.Set, e kernel.Element) error {
	ofFamily := func(a netip.Addr) bool { return a.BitLen() == s.Family.Bits() }
	second := s.Type == kernel.HashIPPortIP || s.Type == kernel.HashIPPortNet
	switch {
	case !ofFamily(e.Addr):
		return fmt.Errorf("its address is not %s", s.Family)
	case (e.Protocol != 0) != (s.Type != kernel.HashIP) || e.Protocol == 0 && e.Port != 0:
		return fmt.Errorf("its port is not that of a set %s", s.Type)
	case e.Addr2.IsValid() != second || second && !ofFamily(e.Addr2) || (e.Bits2 != 0) != (s.Type == kernel.HashIPPortNet):
		return fmt.Errorf("its second address is not that of a set %s", s.Type)
	case s.Type == kernel.HashIP && e.Addr.IsUnspecified():
		return errors.New("it has a null address")
	}
	if r := netip.PrefixFrom(e.Addr2, int(e.Bits2)); s.Type == kernel.HashIPPortNet && (!r.IsValid() || r != r.Masked()) {
		return fmt.Errorf("its range %s/%d has too many bits, or host bits set", e.Addr2, e.Bits2)
	}
	return nil
}

var errElement = errors.New("element does not fit its set")

// decodeElement is the inverse of encodeElement. It rejects ranges that are not prefixes, which the agent never writes.
func decodeElement(s kernel.Set, key, last []byte) (e kernel.Element, err error) {
	n := int(addressBytes(s.Family))
	_, lengths, err := fieldsOf(s)
	if err != nil || len(key) != int(sum(lengths)) {
		return e, errElement
	}
	e.Addr, _ = netip.AddrFromSlice(key[:n])
	if s.Type == kernel.HashIP {
		return e, nil
	}
	e.Protocol, e.Port = inet.Protocol(key[n]), uint16(key[n+4])<<8|uint16(key[n+5])
	if s.Type == kernel.HashIPPort {
		return e, nil
	}
	e.Addr2, _ = netip.AddrFromSlice(key[n+8:])
	if s.Type == kernel.HashIPPortIP {
		return e, nil
	}
	if last == nil {
		last = key
	}
	if len(last) != len(key) {
		return e, errElement
	}
	for bits := s.Family.Bits(); bits > 0; bits-- {
		r := netip.PrefixFrom(e.Addr2, bits)
		if r == r.Masked() && string(lastOf(r)) == string(last[n+8:]) {
			e.Bits2 = uint8(bits)
			return e, nil
		}
	}
	return e, errElement
}

func appendElement(b, key, last []byte) []byte {
	return nlbatch.AppendNest(b, unix.NFTA_LIST_ELEM, func(b []byte) []byte {
		b = appendData(b, unix.NFTA_SET_ELEM_KEY, key)
		if last != nil {
			b = appendData(b, setElemKeyEnd, last)
		}
		return b
	})
}

// elementRequest returns one request for elements of one set, at most maxEntries.
func elementRequest(msg, flags uint16, s kernel.Set, elements ...kernel.Element) (nlbatch.Request, error) {
	var err error
	b := nlbatch.AppendNest(elementsOf(s.Name), unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(b []byte) []byte {
		for _, e := range elements {
			key, last, wrong := encodeElement(s, e)
			err = errors.Join(err, wrong)
			b = appendElement(b, key, last)
		}
		return b
	})
	return request(msg, flags, b), err
}

func elementsOf(set string) []byte {
	b := nlbatch.AppendString(nil, unix.NFTA_SET_ELEM_LIST_TABLE, Table)
	return nlbatch.AppendString(b, unix.NFTA_SET_ELEM_LIST_SET, set)
}

// decodeElements parses one message of a list of elements.
func decodeElements(s kernel.Set, payload []byte, into map[kernel.Element]struct{}) error {
	return eachAttr(payload, func(typ uint16, v []byte) error {
		if typ != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			return nil
		}
		return nlbatch.EachAttr(v, func(_ uint16, v []byte) error {
			var key, last []byte
			err := nlbatch.EachAttr(v, func(typ uint16, v []byte) error {
				switch typ {
				case unix.NFTA_SET_ELEM_KEY:
					return data(v, &key)
				case setElemKeyEnd:
					return data(v, &last)
				}
				return nil
			})
			if err != nil {
				return err
			}
			e, err := decodeElement(s, key, last)
			into[e] = struct{}{}
			return err
		})
	})
}

func data(v []byte, into *[]byte) error {
	return nlbatch.EachAttr(v, func(typ uint16, v []byte) error {
		if typ == unix.NFTA_DATA_VALUE {
			*into = v
		}
		return nil
	})
}
