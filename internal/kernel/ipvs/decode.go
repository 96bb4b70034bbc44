package ipvs

import (
	"fmt"
	"net/netip"

	lib "github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

type service struct {
	family, protocol, port uint16
	address, netmask       []byte
	mark                   uint32
	scheduler              string
	flags, timeout         uint32
}

// The second result is false for a firewall-mark server, and for a protocol that IPVS never balances.
func decodeServer(payload []byte) (kernel.Server, bool, error) {
	var s service
	if err := eachNested(payload, attrService, s.attr); err != nil {
		return kernel.Server{}, false, fmt.Errorf("decode virtual server: %w", err)
	}
	if s.mark != 0 || !balances(s.protocol) {
		return kernel.Server{}, false, nil
	}
	server, err := s.server()
	if err != nil {
		return kernel.Server{}, false, fmt.Errorf("decode virtual server: %w", err)
	}
	return server, true, nil
}

// balances reports whether IPVS balances a protocol. Netlink accepts virtual servers of every protocol.
func balances(protocol uint16) bool {
	switch protocol {
	case uint16(inet.TCP), uint16(inet.UDP), uint16(inet.SCTP):
		return true
	}
	return false
}

func eachNested(payload []byte, outer uint16, handle func(uint16, []byte) error) error {
	attrs, err := body(payload)
	if err != nil {
		return err
	}
	return nlbatch.EachAttr(attrs, func(typ uint16, v []byte) error {
		if typ != outer {
			return nil
		}
		return nlbatch.EachAttr(v, handle)
	})
}

func (s *service) attr(typ uint16, v []byte) (err error) {
	switch typ {
	case svcAddressFamily:
		s.family, err = nlbatch.Uint16(v)
	case svcProtocol:
		s.protocol, err = nlbatch.Uint16(v)
	case svcAddress:
		s.address = v
	case svcPort:
		s.port, err = nlbatch.BigUint16(v)
	case svcFirewallMark:
		s.mark, err = nlbatch.Uint32(v)
	case svcScheduler:
		s.scheduler = nlbatch.String(v)
	case svcFlags:
		s.flags, err = nlbatch.Uint32(v)
	case svcTimeout:
		s.timeout, err = nlbatch.Uint32(v)
	case svcNetmask:
		s.netmask = v
	}
	return err
}

func (s *service) server() (kernel.Server, error) {
	addr, err := address(s.family, s.address)
	if err != nil {
		return kernel.Server{}, err
	}
	server := kernel.Server{
		Key: kernel.ServerKey{
			Addr:     netip.AddrPortFrom(addr, s.port),
			Protocol: inet.Protocol(s.protocol),
		},
		Scheduler: s.scheduler,
		Flags:     s.flags & kernel.FlagsConfigurable,
	}
	if server.Flags&kernel.FlagPersistent != 0 {
		server.Timeout = s.timeout // for other servers, the kernel stores a timeout that has no effect
	}
	server.MaskBits, err = maskBits(inet.FamilyOf(addr), s.netmask)
	return server, err
}

// address decodes an address. The kernel sends 16 bytes for either family.
func address(family uint16, b []byte) (netip.Addr, error) {
	switch {
	case family == unix.AF_INET && len(b) >= 4:
		return netip.AddrFrom4([4]byte(b)), nil
	case family == unix.AF_INET6 && len(b) >= 16:
		return netip.AddrFrom16([16]byte(b)), nil
	}
	return netip.Addr{}, fmt.Errorf("address of %d bytes and family %d", len(b), family)
}

type dest struct {
	family, port                 uint16
	address                      []byte
	forwarding, weight           uint32
	upper, lower                 uint32
	active, inactive, persistent uint32
}

func decodeDestination(payload []byte, f inet.Family) (kernel.ObservedDestination, error) {
	d := dest{family: addressFamily(f)} // kernels before 3.18 do not send the family
	if err := eachNested(payload, attrDest, d.attr); err != nil {
		return kernel.ObservedDestination{}, fmt.Errorf("decode destination: %w", err)
	}
	addr, err := address(d.family, d.address)
	if err != nil {
		return kernel.ObservedDestination{}, fmt.Errorf("decode destination: %w", err)
	}
	return kernel.ObservedDestination{
		Destination: kernel.Destination{Addr: netip.AddrPortFrom(addr, d.port), Weight: d.weight, Upper: d.upper, Lower: d.lower},
		Forwarding:  kernel.Forwarding(d.forwarding & lib.ConnectionFlagFwdMask),
		Stats:       kernel.DestinationStats{Active: d.active, Inactive: d.inactive, Persistent: d.persistent},
	}, nil
}

func (d *dest) attr(typ uint16, v []byte) (err error) {
	switch typ {
	case destAddressFamily:
		d.family, err = nlbatch.Uint16(v)
	case destAddress:
		d.address = v
	case destPort:
		d.port, err = nlbatch.BigUint16(v)
	case destForwarding:
		d.forwarding, err = nlbatch.Uint32(v)
	case destWeight:
		d.weight, err = nlbatch.Uint32(v)
	case destUpperThreshold:
		d.upper, err = nlbatch.Uint32(v)
	case destLowerThreshold:
		d.lower, err = nlbatch.Uint32(v)
	case destActive:
		d.active, err = nlbatch.Uint32(v)
	case destInactive:
		d.inactive, err = nlbatch.Uint32(v)
	case destPersistent:
		d.persistent, err = nlbatch.Uint32(v)
	}
	return err
}
