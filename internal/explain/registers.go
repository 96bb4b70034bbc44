package explain

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// registers are the 32-bit registers of an nftables rule. Each contains the bits that the last statement stored.
type registers [16]bits

// read returns bytes, starting at a register. Bytes that no statement stored are unknown.
func (r *registers) read(from, length int) bits {
	all := unknownBits(length)
	var names []string
	for at := 0; at < length && from < len(r); {
		part := r[from]
		all.put(at, part)
		if part.name != "" {
			names = append(names, part.name)
		}
		all.client = all.client || part.client
		words := max(1, len(part.data)/registerSize)
		if len(part.least) == length {
			all.least, all.greatest, all.swapped = part.least, part.greatest, part.swapped
		}
		at, from = at+words*registerSize, from+words
	}
	all.name = strings.Join(names, " . ")
	return all
}

// store writes bits, starting at a register. It pads the last register with zeros.
func (r *registers) store(to int, b bits) {
	padded := exactly(make([]byte, (len(b.data)+registerSize-1)/registerSize*registerSize))
	padded.put(0, b)
	padded.name, padded.client, padded.least, padded.greatest, padded.swapped = b.name, b.client, b.least, b.greatest, b.swapped
	if to < len(r) {
		r[to] = padded
	}
}

func (b bits) transform(mask, xor []byte) bits {
	out := bits{data: bytes.Clone(b.data), known: bytes.Clone(b.known), name: b.name, client: b.client}
	for i := range out.data {
		m, x := byte(math.MaxUint8), byte(0)
		if i < len(mask) {
			m = mask[i]
		}
		if i < len(xor) {
			x = xor[i]
		}
		out.data[i] = out.data[i]&m ^ x
		out.known[i] |= ^m
	}
	return out
}

var bigEndian = binary.NativeEndian.Uint16([]byte{1, 0}) != 1

// reversed reverses the bytes of each number.
func (b bits) reversed(size int) bits {
	out := b
	out.data, out.known = bytes.Clone(b.data), bytes.Clone(b.known)
	if bigEndian || size < 2 {
		return out
	}
	if out.swapped = !b.swapped; len(b.least) != size {
		out.least, out.greatest = nil, nil
	}
	for at := 0; at+size <= len(out.data); at += size {
		for i := range size {
			out.data[at+i], out.known[at+i] = b.data[at+size-1-i], b.known[at+size-1-i]
		}
	}
	return out
}

// within reports whether the value is between two bounds. It allocates nothing: a set may contain many thousands of ranges.
func (b bits) within(first, last []byte) matchResult {
	switch {
	case b.compareTo(first, 0xff) < 0, b.compareTo(last, 0) > 0, bytes.Equal(first, last) && !b.canBe(first):
		return no
	case b.compareTo(first, 0) >= 0 && b.compareTo(last, 0xff) <= 0:
		return yes
	}
	return maybe
}

// compareTo compares a value as bytes.Compare does, with all unknown bits set to the bits of fill.
func (b bits) compareTo(value []byte, fill byte) int {
	switch {
	case b.least == nil || b.swapped:
	case fill == 0:
		return bytes.Compare(b.least, value)
	default:
		return bytes.Compare(b.greatest, value)
	}
	for i := range min(len(b.data), len(value)) {
		if c := cmp.Compare(b.data[i]&b.known[i]|fill&^b.known[i], value[i]); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(b.data), len(value))
}

func (b bits) isKnown() bool {
	return !slices.ContainsFunc(b.known, func(k byte) bool { return k != math.MaxUint8 })
}

// address returns the address in a register; it is invalid if it is unknown.
func (r *nftRun) address(register int) netip.Addr {
	b := r.registers.read(register, r.p.family.Bits()/8)
	if !b.isKnown() {
		return netip.Addr{}
	}
	a, _ := netip.AddrFromSlice(b.data)
	return a
}

func (b bits) canBe(value []byte) bool {
	for i := range b.data {
		if i < len(value) && (b.data[i]^value[i])&b.known[i] != 0 {
			return false
		}
	}
	return true
}

func (b bits) compare(op uint32, value []byte) matchResult {
	least, greatest := make([]byte, len(value)), bytes.Repeat([]byte{math.MaxUint8}, len(value))
	switch op {
	case kernel.NFTEqual:
		return b.within(value, value)
	case kernel.NFTNotEqual:
		return b.within(value, value).not()
	case kernel.NFTLessEqual:
		return b.within(least, value)
	case kernel.NFTLess:
		return b.within(value, greatest).not()
	case kernel.NFTGreater:
		return b.within(least, value).not()
	case kernel.NFTGreaterEqual:
		return b.within(value, greatest)
	}
	return maybe
}

// in reports whether the bits match the key range of an element, field by field.
func (b bits) in(e kernel.NFTElement, fields []int) matchResult {
	least, at := yes, 0
	for _, length := range fields {
		end := at + length
		if end > len(b.data) || end > len(e.Key) || end > len(e.End) {
			return maybe
		}
		part := b
		if len(fields) > 1 {
			part = bits{data: b.data[at:end], known: b.known[at:end]}
		}
		least = min(least, part.within(e.Key[at:end], e.End[at:end]))
		at += (length + registerSize - 1) / registerSize * registerSize
	}
	return least
}

// text formats a constant with which the value is compared.
func (b bits) text(value []byte) string {
	if b.least == nil || b.swapped {
		return text(b.name, value)
	}
	return new(big.Int).SetBytes(value).String()
}

// text formats a constant as nft does. It infers the type from the field's name and the length.
func text(name string, value []byte) string {
	switch {
	case strings.HasSuffix(name, "addr") && len(value) < 4:
		full := netip.AddrFrom4([4]byte(append(bytes.Clone(value), make([]byte, 4-len(value))...)))
		return netip.PrefixFrom(full, 8*len(value)).String()
	case strings.HasSuffix(name, "addr"):
		if addr, ok := netip.AddrFromSlice(value); ok {
			return addr.String()
		}
	case strings.HasSuffix(name, "port") && len(value) == 2:
		return fmt.Sprint(binary.BigEndian.Uint16(value))
	case strings.HasSuffix(name, "ifname"):
		end := bytes.IndexByte(value, 0)
		if end < 0 {
			return fmt.Sprintf("%q", string(value)+"*")
		}
		return fmt.Sprintf("%q", value[:end])
	case len(value) == 1:
		return fmt.Sprint(value[0])
	case len(value) == registerSize:
		return fmt.Sprintf("0x%x", binary.NativeEndian.Uint32(value))
	}
	return fmt.Sprintf("0x%x", value)
}
