package judge

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Key identifies a virtual server.
type Key struct {
	Protocol corev1.Protocol
	Addr     netip.AddrPort
}

func (k Key) String() string { return fmt.Sprintf("%s/%s", k.Addr, k.Protocol) }

// Compare orders keys by address, port and protocol.
func (k Key) Compare(o Key) int {
	return cmp.Or(k.Addr.Compare(o.Addr), cmp.Compare(k.Protocol, o.Protocol))
}

// Server is a virtual server as ipvsadm prints it.
type Server struct {
	Options      string // scheduler and persistence
	Destinations map[netip.AddrPort]int
}

// State is the kernel state of a node's Services.
type State struct {
	Servers map[Key]Server
	Bound   map[netip.Addr]bool
}

var protocols = map[string]corev1.Protocol{"-t": corev1.ProtocolTCP, "-u": corev1.ProtocolUDP, "--sctp-service": corev1.ProtocolSCTP}

// ParseState parses the output of "ipvsadm -Sn" and "ip -o addr show dev kube-ipvs0".
func ParseState(table, addresses string) (State, error) {
	s := State{Servers: map[Key]Server{}, Bound: map[netip.Addr]bool{}}
	for line := range strings.Lines(table) {
		if err := s.serverLine(strings.Fields(line)); err != nil {
			return s, fmt.Errorf("ipvsadm: %q: %w", strings.TrimSpace(line), err)
		}
	}
	for line := range strings.Lines(addresses) {
		fields := strings.Fields(line)
		i := slices.IndexFunc(fields, func(f string) bool { return f == "inet" || f == "inet6" })
		if i < 0 || i+1 == len(fields) {
			return s, fmt.Errorf("ip addr: %q: no address", strings.TrimSpace(line))
		}
		prefix, err := netip.ParsePrefix(fields[i+1])
		if err != nil {
			return s, fmt.Errorf("ip addr: %w", err)
		}
		if !prefix.Addr().IsLinkLocalUnicast() { // the kernel adds a link-local address when the interface comes up
			s.Bound[prefix.Addr()] = true
		}
	}
	return s, nil
}

func (s State) serverLine(f []string) error {
	if len(f) < 3 {
		return fmt.Errorf("too few fields")
	}
	protocol, known := protocols[f[1]]
	if !known {
		return fmt.Errorf("unknown protocol option %q", f[1])
	}
	addr, err := netip.ParseAddrPort(f[2])
	if err != nil {
		return err
	}
	key := Key{protocol, addr}
	switch f[0] {
	case "-A":
		s.Servers[key] = Server{strings.Join(f[3:], " "), map[netip.AddrPort]int{}}
		return nil
	case "-a":
		return s.destination(key, f[3:])
	}
	return fmt.Errorf("neither a virtual server nor a destination")
}

func (s State) destination(key Key, f []string) error {
	if len(f) != 5 || f[0] != "-r" || f[2] != "-m" || f[3] != "-w" {
		return fmt.Errorf("not a masquerading destination with a weight")
	}
	addr, err := netip.ParseAddrPort(f[1])
	if err != nil {
		return err
	}
	weight, err := strconv.Atoi(f[4])
	if err != nil {
		return err
	}
	s.Servers[key].Destinations[addr] = weight
	return nil
}

// String formats a server on one line.
func (s Server) String() string {
	var b strings.Builder
	b.WriteString(s.Options)
	for _, d := range s.sorted() {
		fmt.Fprintf(&b, " %s(%d)", d, s.Destinations[d])
	}
	if len(s.Destinations) == 0 {
		b.WriteString(" no destinations")
	}
	return b.String()
}

func (s Server) sorted() []netip.AddrPort {
	var list []netip.AddrPort
	for d := range s.Destinations {
		list = append(list, d)
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	return list
}

// Serving returns the destinations that accept new connections.
func (s Server) Serving() []netip.AddrPort {
	return slices.DeleteFunc(s.sorted(), func(d netip.AddrPort) bool { return s.Destinations[d] == 0 })
}

// equal ignores draining destinations, which depend on open connections.
func (s Server) equal(o Server) bool {
	return s.Options == o.Options && slices.Equal(s.Serving(), o.Serving())
}
