package kerneltest

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"syscall"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// schedulers lists the schedulers that every kernel since 4.18 has (net/netfilter/ipvs/ip_vs_*.c). Only some distributions build twos,
// which was added in Linux 5.12.
var schedulers = []string{
	"dh", "fo", "lblc", "lblcr", "lc", "mh", "nq", "ovf", "rr", "sed", "sh", "wlc", "wrr",
}

type server struct {
	kernel.ObservedServer
	shared bool // a state that was read shares the list of destinations, so the next write must replace it
}

func (s *server) observe() kernel.ObservedServer {
	s.shared = true
	return s.ObservedServer
}

func (s *server) own() {
	if s.shared {
		s.Destinations, s.shared = slices.Clone(s.Destinations), false
	}
}

func (f *Fake) readServers(s *kernel.State) {
	s.Servers = make(map[kernel.ServerKey]kernel.ObservedServer, len(f.servers))
	for key, server := range f.servers {
		s.Servers[key] = server.observe()
	}
}

func (s *server) place(addr netip.AddrPort) (int, bool) {
	return slices.BinarySearchFunc(s.Destinations, addr, func(d kernel.ObservedDestination, a netip.AddrPort) int { return d.Addr.Compare(a) })
}

func (s *server) store(d kernel.ObservedDestination) {
	s.own()
	if i, found := s.place(d.Addr); found {
		s.Destinations[i] = d
	} else {
		s.Destinations = slices.Insert(s.Destinations, i, d)
	}
}

func (s *server) remove(addr netip.AddrPort) {
	if i, found := s.place(addr); found {
		s.own()
		s.Destinations = slices.Delete(s.Destinations, i, i+1)
	}
}

func (f *Fake) applyServer(verb kernel.Verb, want kernel.Server) error {
	have, ok := f.servers[want.Key]
	switch verb {
	case kernel.Create:
		if ok {
			return kernel.ErrExists
		}
		if err := f.checkServer(want); err != nil {
			return err
		}
		f.servers[want.Key] = &server{ObservedServer: kernel.ObservedServer{Server: asStored(want)}}
		return nil
	case kernel.Update:
		if !ok {
			return kernel.ErrNotFound
		}
		if err := f.checkServer(want); err != nil {
			return err
		}
		have.Server = asStored(want)
		return nil
	case kernel.Delete:
		delete(f.servers, want.Key)
		return nil
	}
	return errVerb("a virtual server")
}

// asStored returns the virtual server as Read returns it: without the kernel's own flags, without a timeout that has no effect, and with
// the full mask instead of 0 bits.
func asStored(s kernel.Server) kernel.Server {
	s.Flags &= kernel.FlagsConfigurable
	if s.Flags&kernel.FlagPersistent == 0 {
		s.Timeout = 0
	}
	if s.MaskBits == 0 {
		s.MaskBits = uint8(s.Key.Family().Bits())
	}
	return s
}

func (f *Fake) checkServer(s kernel.Server) error {
	if !f.hasScheduler(s.Scheduler) {
		return kernel.NoSchedulerError{Scheduler: s.Scheduler}
	}
	if !s.Key.Addr.IsValid() || s.Key.Addr.Addr().Is4In6() {
		return fmt.Errorf("address %s: %w", s.Key.Addr, syscall.EINVAL)
	}
	switch s.Key.Protocol {
	case inet.TCP, inet.UDP, inet.SCTP:
	default:
		return fmt.Errorf("protocol %s: %w", s.Key.Protocol, syscall.EINVAL)
	}
	if family := s.Key.Family(); int(s.MaskBits) > family.Bits() {
		return fmt.Errorf("mask of %d bits for %s: %w", s.MaskBits, family, syscall.EINVAL)
	}
	return nil
}

func (f *Fake) applyDestination(verb kernel.Verb, want kernel.ServerDestination) error {
	s, ok := f.servers[want.Server]
	if verb == kernel.Delete {
		if ok {
			s.remove(want.Addr)
		}
		return nil
	}
	if !ok {
		return fmt.Errorf("virtual server: %w", kernel.ErrNotFound)
	}
	if f.network[want.Destination.Addr.Addr()].Kind == kernel.Broadcast {
		return fmt.Errorf("%s is a broadcast address: %w", want.Destination.Addr, syscall.EINVAL)
	}
	return s.put(verb, want.Destination)
}

func (s *server) put(verb kernel.Verb, want kernel.Destination) error {
	if err := s.checkDestination(want); err != nil {
		return err
	}
	have, ok := s.Destination(want.Addr)
	switch {
	case verb != kernel.Create && verb != kernel.Update:
		return errVerb("a destination")
	case verb == kernel.Create && ok:
		return kernel.ErrExists
	case verb == kernel.Update && !ok:
		return kernel.ErrNotFound
	case !routable(want.Addr.Addr()):
		return fmt.Errorf("%s is not a unicast address: %w", want.Addr, syscall.EINVAL)
	}
	// An update keeps the connections, and sets the forwarding method to masquerading.
	s.store(kernel.ObservedDestination{Destination: want, Stats: have.Stats})
	return nil
}

func (s *server) checkDestination(d kernel.Destination) error {
	if !d.Addr.IsValid() || inet.FamilyOf(d.Addr.Addr()) != s.Key.Family() {
		return fmt.Errorf("%s behind a virtual server of %s: %w", d.Addr, s.Key.Family(), syscall.EINVAL)
	}
	if d.Weight > math.MaxInt32 {
		return fmt.Errorf("weight %d: %w", d.Weight, syscall.ERANGE)
	}
	if d.Upper > math.MaxInt32 { // as in Linux 7.2; 6.12 accepts it
		return fmt.Errorf("connection limit %d: %w", d.Upper, syscall.EINVAL)
	}
	if d.Lower > d.Upper {
		return fmt.Errorf("connection limit %d is below its resume threshold %d: %w", d.Upper, d.Lower, syscall.ERANGE)
	}
	return nil
}

// routable repeats the kernel's inet_addr_type and ipv6_addr_type test for a new destination.
func routable(a netip.Addr) bool {
	if a.Is4() {
		b := a.As4()
		return b[0] != 0 && !a.IsMulticast() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
	}
	return !a.IsUnspecified() && !a.IsMulticast() && !a.IsLinkLocalUnicast()
}

// SetConnections sets the connection counts of a destination. It panics if the destination does not exist.
func (f *Fake) SetConnections(key kernel.ServerKey, dest netip.AddrPort, active, inactive uint32) {
	d := kernel.ServerDestination{Server: key, Destination: kernel.Destination{Addr: dest}}
	f.setStats(d, kernel.DestinationStats{Active: active, Inactive: inactive})
}

func (f *Fake) setStats(d kernel.ServerDestination, stats kernel.DestinationStats) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.servers[d.Server]
	if s == nil {
		panic(fmt.Sprintf("SetConnections: virtual server %s does not exist", d.Server))
	}
	have, ok := s.Destination(d.Addr)
	if !ok {
		panic(fmt.Sprintf("SetConnections: destination %s of %s does not exist", d.Addr, d.Server))
	}
	have.Stats = stats
	s.store(have)
}

// A dump of the whole table does not show connection limits.
func hideLimits(s *kernel.State) {
	for key, server := range s.Servers {
		server.Destinations = slices.Clone(server.Destinations)
		for i := range server.Destinations {
			server.Destinations[i].Upper, server.Destinations[i].Lower = 0, 0
		}
		s.Servers[key] = server
	}
}
