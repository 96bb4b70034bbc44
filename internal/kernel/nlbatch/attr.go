package nlbatch

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

const (
	attrHeader = 4
	typeMask   = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
)

// AppendAttr appends a netlink attribute. The type may carry flags.
func AppendAttr(b []byte, typ uint16, value []byte) []byte {
	b = appendAttrHeader(b, typ, len(value))
	b = append(b, value...)
	return appendPadding(b, len(value))
}

func appendAttrHeader(b []byte, typ uint16, length int) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(attrHeader+length))
	return binary.NativeEndian.AppendUint16(b, typ)
}

// AppendUint8 appends an attribute of one byte.
func AppendUint8(b []byte, typ uint16, v uint8) []byte { return AppendAttr(b, typ, []byte{v}) }

// AppendUint16 appends an attribute of two bytes in the host's order.
func AppendUint16(b []byte, typ uint16, v uint16) []byte {
	b = appendAttrHeader(b, typ, 2)
	return appendPadding(binary.NativeEndian.AppendUint16(b, v), 2)
}

// AppendUint32 appends an attribute of four bytes in the host's order.
func AppendUint32(b []byte, typ uint16, v uint32) []byte {
	b = appendAttrHeader(b, typ, 4)
	return binary.NativeEndian.AppendUint32(b, v)
}

// AppendBigUint16 appends an attribute of two bytes in network order.
func AppendBigUint16(b []byte, typ uint16, v uint16) []byte {
	b = appendAttrHeader(b, typ, 2)
	return appendPadding(binary.BigEndian.AppendUint16(b, v), 2)
}

// AppendBigUint32 appends an attribute of four bytes in network order.
func AppendBigUint32(b []byte, typ uint16, v uint32) []byte {
	b = appendAttrHeader(b, typ, 4)
	return binary.BigEndian.AppendUint32(b, v)
}

// AppendAddr appends an IP address.
func AppendAddr(b []byte, typ uint16, a netip.Addr) []byte {
	if a.Is4() {
		v := a.As4()
		return AppendAttr(b, typ, v[:])
	}
	v := a.As16()
	return AppendAttr(b, typ, v[:])
}

// AppendString appends a zero-terminated string.
func AppendString(b []byte, typ uint16, s string) []byte {
	return AppendAttr(b, typ, append([]byte(s), 0))
}

// AppendNest appends an attribute that contains the attributes appended by fill.
func AppendNest(b []byte, typ uint16, fill func([]byte) []byte) []byte {
	at := len(b)
	b = binary.NativeEndian.AppendUint16(b, 0)
	b = binary.NativeEndian.AppendUint16(b, typ|unix.NLA_F_NESTED)
	b = fill(b)
	binary.NativeEndian.PutUint16(b[at:], uint16(len(b)-at))
	return b
}

// EachAttr calls handle for each attribute, with the type's flags removed. It returns handle's first error, or an
// error if the data is malformed.
func EachAttr(b []byte, handle func(typ uint16, value []byte) error) error {
	for len(b) >= attrHeader {
		length, typ := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		if length < attrHeader || length > len(b) {
			return fmt.Errorf("read attribute %d: length is %d bytes, but only %d are left", typ&typeMask, length, len(b))
		}
		if err := handle(typ&typeMask, b[attrHeader:length]); err != nil {
			return err
		}
		b = b[min(align(length), len(b)):]
	}
	return nil
}

// Uint8 reads an attribute of one byte.
func Uint8(v []byte) (uint8, error) {
	if len(v) < 1 {
		return 0, errShort(v, 1)
	}
	return v[0], nil
}

// Uint16 reads an attribute in the host's order.
func Uint16(v []byte) (uint16, error) {
	if len(v) < 2 {
		return 0, errShort(v, 2)
	}
	return binary.NativeEndian.Uint16(v), nil
}

// Uint32 reads an attribute in the host's order.
func Uint32(v []byte) (uint32, error) {
	if len(v) < 4 {
		return 0, errShort(v, 4)
	}
	return binary.NativeEndian.Uint32(v), nil
}

// BigUint16 reads an attribute in network order.
func BigUint16(v []byte) (uint16, error) {
	if len(v) < 2 {
		return 0, errShort(v, 2)
	}
	return binary.BigEndian.Uint16(v), nil
}

// BigUint32 reads an attribute in network order.
func BigUint32(v []byte) (uint32, error) {
	if len(v) < 4 {
		return 0, errShort(v, 4)
	}
	return binary.BigEndian.Uint32(v), nil
}

// String reads a string that may end with zeros.
func String(v []byte) string { return unix.ByteSliceToString(v) }

func errShort(v []byte, want int) error {
	return fmt.Errorf("read attribute: %d bytes instead of %d", len(v), want)
}
