package ipvsadm

import (
	"net/netip"
	"strconv"
	"strings"
)

// Names translates between names and numbers, for command lines and for lists without -n.
type Names interface {
	Addr(host string) (netip.Addr, bool)
	// Port looks up a port's number; the protocol is tcp, udp or sctp.
	Port(name, protocol string) (uint16, bool)
	Host(netip.Addr) (string, bool)
	// PortName looks up a port's name. An empty protocol means any.
	PortName(port uint16, protocol string) (string, bool)
}

// parseAddress reads HOST, HOST:PORT or [IPV6]:PORT. An IPv6 address without brackets has port 0. If brackets contain
// anything but an IPv6 address, the port is ignored.
func parseAddress(s, protocol string, names Names) (netip.AddrPort, bool) {
	host, port, ok := splitAddress(s)
	if !ok {
		return netip.AddrPort{}, false
	}
	addr, ok := parseHost(host, names)
	if !ok {
		return netip.AddrPort{}, false
	}
	if port == nil || addr.Is4() && s[0] == '[' {
		return netip.AddrPortFrom(addr, 0), true
	}
	n, ok := parsePort(*port, protocol, names)
	return netip.AddrPortFrom(addr, n), ok
}

func splitAddress(s string) (host string, port *string, ok bool) {
	if inner, bracket := strings.CutPrefix(s, "["); bracket {
		host, rest, found := strings.Cut(inner, "]:")
		return host, &rest, found
	}
	if _, v6 := parseIPv6(s); v6 {
		return s, nil, true
	}
	if i := strings.LastIndexByte(s, ':'); i >= 0 {
		rest := s[i+1:]
		return s[:i], &rest, true
	}
	return s, nil, true
}

func parseHost(s string, names Names) (netip.Addr, bool) {
	if addr, ok := parseIPv6(s); ok {
		return addr, true
	}
	if addr, ok := parseIPv4(s); ok {
		return addr, true
	}
	if s == "" {
		return netip.Addr{}, false
	}
	return names.Addr(s)
}

func parseIPv6(s string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(s)
	return addr, err == nil && addr.Is6() && addr.Zone() == ""
}

// parseIPv4 accepts the forms of inet_aton(3): one to four decimal, octal or hexadecimal numbers, the last of which
// fills the remaining bytes. It ignores text after a space.
func parseIPv4(s string) (netip.Addr, bool) {
	if i := strings.IndexAny(s, " \t\n\v\f\r"); i >= 0 {
		s = s[:i]
	}
	parts := strings.Split(s, ".")
	if len(parts) > 4 {
		return netip.Addr{}, false
	}
	var all uint64
	last := len(parts) - 1
	for i, part := range parts {
		bits := 8
		if i == last {
			bits = 8 * (4 - last)
		}
		n, ok := parseCInt(part, bits)
		if !ok {
			return netip.Addr{}, false
		}
		all = all<<bits | n
	}
	return netip.AddrFrom4([4]byte{byte(all >> 24), byte(all >> 16), byte(all >> 8), byte(all)}), true
}

// parseCInt parses a number in C notation: 0x for hexadecimal, 0 for octal.
func parseCInt(s string, bits int) (uint64, bool) {
	base := 10
	switch {
	case strings.HasPrefix(s, "0x"), strings.HasPrefix(s, "0X"):
		base, s = 16, s[2:]
	case len(s) > 1 && s[0] == '0':
		base = 8
	}
	n, err := strconv.ParseUint(s, base, bits)
	return n, err == nil
}

func parsePort(s, protocol string, names Names) (uint16, bool) {
	if n, ok := parseInt(s, 0, 1<<16-1); ok {
		return uint16(n), true
	}
	return names.Port(s, protocol)
}
