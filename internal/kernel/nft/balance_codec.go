package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

const typeMark = 19 // 4 bytes, in host byte order

// firstIdle is the number of the first slot of endpoints with weight 0. The random numbers are smaller, so no packet gets these slots.
const firstIdle = 1 << 31

type field struct{ typ, length uint32 }

func addressField(f inet.Family) field {
	if f == inet.IPv6 {
		return field{typeIPv6, addressBytes(f)}
	}
	return field{typeIPv4, addressBytes(f)}
}

// balanceMaps creates the maps of a family that do not exist. They have no size, so they grow as needed.
func balanceMaps(f inet.Family) []nlbatch.Request {
	frontend := []field{addressField(f), {typeProtocol, 4}, {typePort, 4}}
	endpoint, length := endpointType(f)
	return []nlbatch.Request{
		newMap(frontendsMap(f), 0, frontend, unix.NFT_DATA_VERDICT, 0, 0),
		newMap(recordMap(f), 0, frontend, unix.NFT_DATA_VERDICT, 0, 0),
		newMap(slotsMap(f), 0, append(slices.Clone(frontend), field{typeMark, 4}), endpoint, length, 0),
	}
}

// affinityMap creates the client map of a frontend if it does not exist.
func affinityMap(key kernel.ServerKey) nlbatch.Request {
	endpoint, length := endpointType(key.Family())
	client := []field{addressField(key.Family())}
	return newMap(kernel.ClientsMap(key), unix.NFT_SET_EVAL|unix.NFT_SET_TIMEOUT, client, endpoint, length, maxClients)
}

func endpointType(f inet.Family) (typ, length uint32) {
	return keyType([]uint32{addressField(f).typ, typePort}), addressBytes(f) + 4
}

func newMap(name string, flags uint32, key []field, data, dataLength, size uint32) nlbatch.Request {
	var types, lengths []uint32
	for _, k := range key {
		types, lengths = append(types, k.typ), append(lengths, k.length)
	}
	if len(key) > 1 {
		flags |= flagConcat
	}
	b := setNamed(name)
	b = appendBigUint32(b, unix.NFTA_SET_FLAGS, flags|unix.NFT_SET_MAP)
	b = appendBigUint32(b, unix.NFTA_SET_KEY_TYPE, keyType(types))
	b = appendBigUint32(b, unix.NFTA_SET_KEY_LEN, sum(lengths))
	b = appendBigUint32(b, unix.NFTA_SET_ID, 1)
	b = appendBigUint32(b, unix.NFTA_SET_DATA_TYPE, data)
	b = appendBigUint32(b, unix.NFTA_SET_DATA_LEN, dataLength)
	b = nlbatch.AppendNest(b, unix.NFTA_SET_DESC, func(b []byte) []byte {
		if size > 0 {
			b = appendBigUint32(b, unix.NFTA_SET_DESC_SIZE, size)
		}
		if len(key) == 1 {
			return b
		}
		return appendFields(b, lengths)
	})
	return request(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, b)
}

func appendFields(b []byte, lengths []uint32) []byte {
	return nlbatch.AppendNest(b, setDescConcat, func(b []byte) []byte {
		for _, n := range lengths {
			b = nlbatch.AppendNest(b, unix.NFTA_LIST_ELEM, func(b []byte) []byte { return appendBigUint32(b, setFieldLength, n) })
		}
		return b
	})
}

// nowhere stands for the verdict return in place of a chain: the client is not recorded.
const nowhere = "nowhere"

// entry is an element of a set or map. An element of a map has a chain or an endpoint as its data.
type entry struct {
	set     string
	key     string // bytes
	chain   string
	data    string
	comment string
}

func frontendKey(k kernel.ServerKey) []byte {
	b := k.Addr.Addr().AsSlice()
	return append(b, byte(k.Protocol), 0, 0, 0, byte(k.Addr.Port()>>8), byte(k.Addr.Port()), 0, 0)
}

func endpointBytes(a netip.AddrPort) []byte {
	return append(a.Addr().AsSlice(), byte(a.Port()>>8), byte(a.Port()), 0, 0)
}

func parseEndpoint(b []byte) (netip.AddrPort, error) {
	if len(b) < 4 {
		return netip.AddrPort{}, errElement
	}
	a, ok := netip.AddrFromSlice(b[:len(b)-4])
	if !ok {
		return netip.AddrPort{}, errElement
	}
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[len(b)-4:])), nil
}

// parseFrontendKey also returns the bytes after the frontend.
func parseFrontendKey(f inet.Family, b []byte) (k kernel.ServerKey, rest []byte, err error) {
	n := int(addressBytes(f))
	if len(b) < n+8 {
		return k, nil, errElement
	}
	a, _ := netip.AddrFromSlice(b[:n])
	k.Addr, k.Protocol = netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[n+4:])), inet.Protocol(b[n])
	return k, b[n+8:], nil
}

// Comments of elements hold what the maps have no fields for.
func frontendComment(f *frontend) string {
	return fmt.Sprintf("%s %d %d %d %d %d", f.Scheduler, f.Flags, f.Timeout, f.MaskBits, len(f.slots), len(f.idle))
}

func parseFrontendComment(text string, s *kernel.Server) (slots, idle uint32, err error) {
	_, err = fmt.Sscanf(text, "%s %d %d %d %d %d", &s.Scheduler, &s.Flags, &s.Timeout, &s.MaskBits, &slots, &idle)
	return slots, idle, err
}

func slotComment(d kernel.Destination) string {
	return fmt.Sprintf("%d %d %d", d.Weight, d.Upper, d.Lower)
}

func parseSlotComment(text string, d *kernel.Destination) error {
	_, err := fmt.Sscanf(text, "%d %d %d", &d.Weight, &d.Upper, &d.Lower)
	return err
}

func frontendEntry(f *frontend) entry {
	return entry{set: frontendsMap(f.Key.Family()), key: string(frontendKey(f.Key)), chain: f.chain(), comment: frontendComment(f)}
}

func recordEntry(f *frontend) entry {
	return entry{set: recordMap(f.Key.Family()), key: string(frontendKey(f.Key)), chain: f.recordChain()}
}

func slotEntry(k kernel.ServerKey, n uint32, d kernel.Destination) entry {
	return entry{
		set: slotsMap(k.Family()), key: string(append(frontendKey(k), native(n)...)), data: string(endpointBytes(d.Addr)), comment: slotComment(d),
	}
}

// append appends the element. A look-up or deletion needs only the key.
func (e entry) append(b []byte, whole bool) []byte {
	return nlbatch.AppendNest(b, unix.NFTA_LIST_ELEM, func(b []byte) []byte {
		b = appendData(b, unix.NFTA_SET_ELEM_KEY, []byte(e.key))
		if !whole {
			return b
		}
		if e.chain != "" {
			b = nlbatch.AppendNest(b, unix.NFTA_SET_ELEM_DATA, func(b []byte) []byte { return appendVerdict(b, unix.NFT_GOTO, e.chain) })
		}
		if e.data != "" {
			b = appendData(b, unix.NFTA_SET_ELEM_DATA, []byte(e.data))
		}
		if e.comment != "" {
			b = nlbatch.AppendAttr(b, unix.NFTA_SET_ELEM_USERDATA, comment(e.comment))
		}
		return b
	})
}

func appendVerdict(b []byte, code int32, chain string) []byte {
	return nlbatch.AppendNest(b, unix.NFTA_DATA_VERDICT, func(b []byte) []byte {
		if chain == nowhere {
			return appendBigUint32(b, unix.NFTA_VERDICT_CODE, uint32(unix.NFT_RETURN&0xffffffff))
		}
		b = appendBigUint32(b, unix.NFTA_VERDICT_CODE, uint32(code))
		return nlbatch.AppendString(b, unix.NFTA_VERDICT_CHAIN, chain)
	})
}

// entriesRequest returns one request for elements of one set.
func entriesRequest(msg, flags uint16, entries []entry) nlbatch.Request {
	b := nlbatch.AppendNest(elementsOf(entries[0].set), unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(b []byte) []byte {
		for _, e := range entries {
			b = e.append(b, msg == unix.NFT_MSG_NEWSETELEM)
		}
		return b
	})
	return request(msg, flags, b)
}

// eachEntry parses one message of a list of elements.
func eachEntry(set string, payload []byte, handle func(entry) error) error {
	return eachAttr(payload, func(typ uint16, v []byte) error {
		if typ != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			return nil
		}
		return nlbatch.EachAttr(v, func(_ uint16, v []byte) error {
			e := entry{set: set}
			if err := nlbatch.EachAttr(v, e.attribute); err != nil {
				return err
			}
			return handle(e)
		})
	})
}

func (e *entry) attribute(typ uint16, v []byte) error {
	switch typ {
	case unix.NFTA_SET_ELEM_KEY:
		var key []byte
		err := data(v, &key)
		e.key = string(key)
		return err
	case unix.NFTA_SET_ELEM_USERDATA:
		e.comment = commentOf(v)
	case unix.NFTA_SET_ELEM_DATA:
		return nlbatch.EachAttr(v, func(typ uint16, v []byte) error {
			switch typ {
			case unix.NFTA_DATA_VALUE:
				e.data = string(v)
			case unix.NFTA_DATA_VERDICT:
				e.chain = nowhere
				return nlbatch.EachAttr(v, func(typ uint16, v []byte) error {
					if typ == unix.NFTA_VERDICT_CHAIN {
						e.chain = nlbatch.String(v)
					}
					return nil
				})
			}
			return nil
		})
	}
	return nil
}

func appendBigUint64(b []byte, typ uint16, v uint64) []byte {
	return nlbatch.AppendAttr(b, typ, binary.BigEndian.AppendUint64(nil, v))
}

// prefixMask returns the mask of a prefix.
func prefixMask(f inet.Family, ones int) []byte {
	full, _ := netip.AddrFromSlice(bytes.Repeat([]byte{0xff}, int(addressBytes(f))))
	return netip.PrefixFrom(full, ones).Masked().Addr().AsSlice()
}
