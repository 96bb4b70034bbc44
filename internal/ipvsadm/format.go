package ipvsadm

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

type printer struct {
	strings.Builder
	request Request
	names   Names
}

func (p *printer) printf(format string, args ...any) { fmt.Fprintf(&p.Builder, format, args...) }

const (
	// maxColumn is the width to which lists truncate an IPv4 address with its port. A longer IPv6 address shifts the
	// columns to the right.
	maxColumn = 28
	maxName   = 59
)

func (p *printer) cutName(a netip.AddrPort, protocol inet.Protocol) string {
	name := p.name(a, protocol)
	if a.Addr().Is4() {
		return name[:min(len(name), maxColumn)]
	}
	return name
}

func (p *printer) name(a netip.AddrPort, protocol inet.Protocol) string {
	host, port := p.host(a.Addr()), p.port(a.Port(), protocol)
	if a.Addr().Is6() {
		host = "[" + host + "]"
	}
	name := host + ":" + port
	return name[:min(len(name), maxName)]
}

func (p *printer) host(a netip.Addr) string {
	if !p.request.Numeric {
		if name, ok := p.names.Host(a); ok {
			return name
		}
	}
	return addressText(a)
}

// addressText formats an address as the C library does. Unlike netip, it writes the end of ::1.2.3.4 as an IPv4
// address.
func addressText(a netip.Addr) string {
	if b := a.As16(); a.Is6() && [12]byte(b[:12]) == [12]byte{} && (b[12] != 0 || b[13] != 0) {
		return "::" + netip.AddrFrom4([4]byte(b[12:])).String()
	}
	return a.String()
}

// port prints the ports of fwmark services as numbers, because their protocol is unknown.
func (p *printer) port(n uint16, protocol inet.Protocol) string {
	if !p.request.Numeric && protocol != 0 {
		if name, ok := p.names.PortName(n, protocol.String()); ok {
			return name
		}
	}
	return strconv.Itoa(int(n))
}

// serviceFlags returns the flags to print in brackets after the scheduler and after -b, or false if there are none.
func serviceFlags(s kernel.TableServer) (string, bool) {
	all := []string{"flag-1", "flag-2", "flag-3"}
	switch s.Scheduler {
	case "sh":
		all = []string{"sh-fallback", "sh-port"}
	case "mh":
		all = []string{"mh-fallback", "mh-port"}
	}
	bits := [...]uint32{kernel.FlagSched1, kernel.FlagSched2, kernel.FlagSched3}
	var set []string
	for i, name := range all {
		if s.Flags&bits[i] != 0 {
			set = append(set, name)
		}
	}
	return strings.Join(set, ","), s.Flags&(kernel.FlagSched1|kernel.FlagSched2|kernel.FlagSched3) != 0
}

// maskText returns the netmask by which a service groups its clients, or false if there is none.
func maskText(s kernel.TableServer) (string, bool) {
	if s.Key.Family == inet.IPv6 {
		return strconv.FormatUint(uint64(s.Netmask), 10), s.Netmask != 128
	}
	m := s.Netmask
	return netip.AddrFrom4([4]byte{byte(m >> 24), byte(m >> 16), byte(m >> 8), byte(m)}).String(), m != 1<<32-1
}

// markText formats a mark as ipvsadm does, as a signed number.
func markText(mark uint32) string { return strconv.FormatInt(int64(int32(mark)), 10) }
