package ipvs

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	lib "github.com/moby/ipvs"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Attributes that only Inspect reads; see genl.go for the others.
const (
	svcStats     = 10
	svcEngine    = 11
	svcStats64   = 12
	destStats    = 10
	destStats64  = 12
	destTunType  = 13
	destTunPort  = 14
	destTunFlags = 15
	statCount    = 10 // attributes 1 to 10 are the fields of Counters, in order
	noMark       = 0
)

func encodeTableKey(k kernel.TableKey) []byte {
	if k.Mark == noMark {
		return encodeKey(kernel.ServerKey{Addr: k.Addr, Protocol: k.Protocol})
	}
	return nlbatch.AppendNest(nil, attrService, func(b []byte) []byte {
		b = nlbatch.AppendUint16(b, svcAddressFamily, addressFamily(k.Family))
		return nlbatch.AppendUint32(b, svcFirewallMark, k.Mark)
	})
}

type rawTableService struct {
	service
	engine string
	stats  kernel.Counters
}

func decodeTableService(payload []byte) (kernel.TableServer, error) {
	var s rawTableService
	if err := eachNested(payload, attrService, s.attr); err != nil {
		return kernel.TableServer{}, fmt.Errorf("decode virtual server: %w", err)
	}
	key, err := s.key()
	if err != nil {
		return kernel.TableServer{}, fmt.Errorf("decode virtual server: %w", err)
	}
	mask, err := rawMask(key.Family, s.netmask)
	if err != nil {
		return kernel.TableServer{}, fmt.Errorf("decode virtual server: %w", err)
	}
	return kernel.TableServer{
		Key: key, Scheduler: s.scheduler, Flags: s.flags, Timeout: s.timeout, Netmask: mask, Engine: s.engine, Stats: s.stats,
	}, nil
}

func (s *rawTableService) attr(typ uint16, v []byte) error {
	switch typ {
	case svcEngine:
		s.engine = nlbatch.String(v)
		return nil
	case svcStats, svcStats64:
		return decodeCounters(&s.stats, v)
	}
	return s.service.attr(typ, v)
}

func (s *rawTableService) key() (kernel.TableKey, error) {
	if s.mark != noMark {
		family, err := familyOf(s.family)
		return kernel.TableKey{Family: family, Mark: s.mark}, err
	}
	addr, err := address(s.family, s.address)
	if err != nil {
		return kernel.TableKey{}, err
	}
	return kernel.TableKey{
		Family: inet.FamilyOf(addr), Protocol: inet.Protocol(s.protocol), Addr: netip.AddrPortFrom(addr, s.port),
	}, nil
}

func familyOf(number uint16) (inet.Family, error) {
	for _, f := range inet.Families {
		if addressFamily(f) == number {
			return f, nil
		}
	}
	return 0, fmt.Errorf("address family %d", number)
}

func rawMask(f inet.Family, v []byte) (uint32, error) {
	if f == inet.IPv6 {
		return nlbatch.Uint32(v)
	}
	return nlbatch.BigUint32(v)
}

type rawTableDestination struct {
	dest
	tunnel kernel.Tunnel
	stats  kernel.Counters
}

func decodeTableDestination(payload []byte, f inet.Family) (kernel.TableDestination, error) {
	d := rawTableDestination{dest: dest{family: addressFamily(f)}} // kernels before 3.18 do not send the family
	if err := eachNested(payload, attrDest, d.attr); err != nil {
		return kernel.TableDestination{}, fmt.Errorf("decode destination: %w", err)
	}
	addr, err := address(d.family, d.address)
	if err != nil {
		return kernel.TableDestination{}, fmt.Errorf("decode destination: %w", err)
	}
	return kernel.TableDestination{
		Addr: netip.AddrPortFrom(addr, d.port), Forwarding: kernel.Forwarding(d.forwarding & lib.ConnectionFlagFwdMask),
		Weight: d.weight, UpperThreshold: d.upper, LowerThreshold: d.lower,
		Active: d.active, Inactive: d.inactive, Persistent: d.persistent, Tunnel: d.tunnel, Stats: d.stats,
	}, nil
}

func (d *rawTableDestination) attr(typ uint16, v []byte) (err error) {
	switch typ {
	case destTunType:
		d.tunnel.Type, err = nlbatch.Uint8(v)
	case destTunPort:
		d.tunnel.Port, err = nlbatch.BigUint16(v)
	case destTunFlags:
		d.tunnel.Flags, err = nlbatch.Uint16(v)
	case destStats, destStats64:
		err = decodeCounters(&d.stats, v)
	default:
		err = d.dest.attr(typ, v)
	}
	return err
}

// decodeCounters reads 32-bit counters or, since Linux 4.1, 64-bit counters. The kernel sends both kinds, with the 64-bit
// counters last.
func decodeCounters(c *kernel.Counters, b []byte) error {
	fields := [statCount]*uint64{
		&c.Connections, &c.InPackets, &c.OutPackets, &c.InBytes, &c.OutBytes,
		&c.ConnectionRate, &c.InPacketRate, &c.OutPacketRate, &c.InByteRate, &c.OutByteRate,
	}
	return nlbatch.EachAttr(b, func(typ uint16, v []byte) (err error) {
		if typ >= 1 && typ <= statCount {
			*fields[typ-1], err = counter(v)
		}
		return err
	})
}

func counter(v []byte) (uint64, error) {
	if len(v) >= 8 {
		return binary.NativeEndian.Uint64(v), nil
	}
	n, err := nlbatch.Uint32(v)
	return uint64(n), err
}
