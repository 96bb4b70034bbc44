package balance

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// firstIdle is the number of the first slot of endpoints with weight 0. The random numbers are smaller, so these slots are never picked.
const firstIdle = 1 << 31

// sharedMaps creates the missing maps of a family. They grow as needed.
func sharedMaps(f inet.Family) []nlbatch.Request {
	frontend, chain := wire.Key{wire.Address(f), wire.Protocol, wire.Port}, wire.Key{{Type: unix.NFT_DATA_VERDICT}}
	number := wire.Field{Type: 19, Length: 4} // type mark: a number in host byte order
	slot := append(slices.Clone(frontend), number)
	return []nlbatch.Request{
		wire.Set(numbersMap(f)).Create(0, wire.Layout{Key: frontend, Value: wire.Key{number, number}}),
		wire.Set(pickersMap(f)).Create(0, wire.Layout{Key: wire.Key{number}, Value: chain}),
		wire.Set(frontendsMap(f)).Create(0, wire.Layout{Key: frontend, Value: chain}),
		wire.Set(recordMap(f)).Create(0, wire.Layout{Key: frontend, Value: chain}),
		wire.Set(slotsMap(f)).Create(0, wire.Layout{Key: slot, Value: wire.Key{wire.Address(f), wire.Port}}),
	}
}

// affinityMap creates the client map of a frontend if it does not exist.
func affinityMap(key kernel.ServerKey) nlbatch.Request {
	client := wire.Address(key.Family())
	return wire.Set(kernel.ClientsMap(key)).Create(0, wire.Layout{
		Flags: unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT, Key: wire.Key{client}, Value: wire.Key{client, wire.Port}, Size: maxClients,
	})
}

// entry is an element of a map. It leads to a chain or contains an endpoint.
type entry struct {
	set string
	wire.Element
}

func frontendKey(k kernel.ServerKey) []byte {
	b := k.Addr.Addr().AsSlice()
	return append(b, byte(k.Protocol), 0, 0, 0, byte(k.Addr.Port()>>8), byte(k.Addr.Port()), 0, 0)
}

func endpointBytes(a netip.AddrPort) []byte {
	return append(a.Addr().AsSlice(), byte(a.Port()>>8), byte(a.Port()), 0, 0)
}

var errElement = errors.New("element does not fit its map")

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
	n := f.Bits() / 8
	if len(b) < n+8 {
		return k, nil, errElement
	}
	a, _ := netip.AddrFromSlice(b[:n])
	k.Addr, k.Protocol = netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[n+4:])), inet.Protocol(b[n])
	return k, b[n+8:], nil
}

// Element comments contain data for which the maps have no fields.
func frontendComment(f *frontend) string {
	return fmt.Sprintf("%s %d %d %d %d %d", f.Scheduler, f.Flags, f.Timeout, f.MaskBits, len(f.slots), len(f.idle))
}

func parseFrontendComment(text string, s *kernel.Server) (slots, idle uint32, err error) {
	name, rest, _ := strings.Cut(text, " ")
	mask := uint32(0)
	err = parseNumbers(rest, &s.Flags, &s.Timeout, &mask, &slots, &idle)
	s.Scheduler, s.MaskBits = name, uint8(mask)
	return slots, idle, err
}

// parseNumbers parses numbers that spaces separate. There are many of them, and fmt.Sscanf takes several times as long.
func parseNumbers(text string, into ...*uint32) error {
	for _, number := range into {
		first, rest, _ := strings.Cut(text, " ")
		n, err := strconv.ParseUint(first, 10, 32)
		if err != nil {
			return err
		}
		*number, text = uint32(n), rest
	}
	return nil
}

func slotComment(d kernel.Destination) string {
	return fmt.Sprintf("%d %d %d", d.Weight, d.Upper, d.Lower)
}

func parseSlotComment(text string, d *kernel.Destination) error {
	return parseNumbers(text, &d.Weight, &d.Upper, &d.Lower)
}

func frontendEntry(f *frontend) *entry {
	e := wire.Element{Key: string(frontendKey(f.Key)), Comment: frontendComment(f)}
	if !f.hasAffinity() && !f.old {
		e.Value = numberValue(f.picker().number())
		return &entry{numbersMap(f.Key.Family()), e}
	}
	e.Chain = f.chain()
	return &entry{frontendsMap(f.Key.Family()), e}
}

func recordEntry(f *frontend) *entry {
	if f.recordChain() == "" {
		return nil
	}
	return &entry{recordMap(f.Key.Family()), wire.Element{Key: string(frontendKey(f.Key)), Chain: f.recordChain()}}
}

func slotEntry(k kernel.ServerKey, n uint32, d kernel.Destination) entry {
	key := append(frontendKey(k), wire.Native(n)...)
	return entry{slotsMap(k.Family()), wire.Element{Key: string(key), Value: string(endpointBytes(d.Addr)), Comment: slotComment(d)}}
}

func entriesRequest(msg, flags uint16, entries ...entry) nlbatch.Request {
	elements := make([]wire.Element, len(entries))
	for i, e := range entries {
		elements[i] = e.Element
	}
	return wire.Set(entries[0].set).Request(msg, flags, elements...)
}
