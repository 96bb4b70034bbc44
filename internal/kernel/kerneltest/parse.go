package kerneltest

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// parseDump creates a kernel with New and runs commands in Dump's format on it. It skips empty lines and lines that begin with #. A
// command that the kernel rejects is an error.
func parseDump(text string, chains ...kernel.ChainID) (*Fake, error) {
	f := New(chains...)
	for i, l := range strings.Split(text, "\n") {
		l = strings.TrimSpace(l)
		if l == "" || strings.HasPrefix(l, "#") {
			continue
		}
		if err := f.run(l); err != nil {
			return nil, fmt.Errorf("line %d: %s: %w", i+1, l, err)
		}
	}
	return f, nil
}

// MustParseDump is like parseDump, but panics on errors. Use it for constant texts.
func MustParseDump(text string, chains ...kernel.ChainID) *Fake {
	f, err := parseDump(text, chains...)
	if err != nil {
		panic(err)
	}
	return f
}

var commands = []struct {
	words string
	run   func(*Fake, *words) error
}{
	{"sysctl -w", (*Fake).parseSysctl},
	{"ip link add", (*Fake).parseDevice},
	{"ip addr add", (*Fake).parseAddress},
	{"ip route add", (*Fake).parseRoute},
	{"ipset create", (*Fake).parseSet},
	{"ipset add", (*Fake).parseMember},
	{"iptables -t", func(f *Fake, w *words) error { return f.parseRule(inet.IPv4, w) }},
	{"ip6tables -t", func(f *Fake, w *words) error { return f.parseRule(inet.IPv6, w) }},
	{"ipvsadm --set", (*Fake).parseTimeouts},
	{"ipvsadm -A", (*Fake).parseServer},
	{"ipvsadm -a", (*Fake).parseDestination},
}

func (f *Fake) run(command string) error {
	for _, c := range commands {
		rest, ok := strings.CutPrefix(command, c.words+" ")
		if !ok {
			continue
		}
		w, err := split(rest)
		if err != nil {
			return err
		}
		if err := c.run(f, w); err != nil {
			return err
		}
		return w.end()
	}
	return fmt.Errorf("unknown command")
}

func (f *Fake) parseSysctl(w *words) error {
	name, value, ok := strings.Cut(w.next(), "=")
	if !ok {
		return fmt.Errorf("must be name=value")
	}
	return f.SetSysctl(kernel.SysctlSetting{Name: name, Value: value})
}

func (f *Fake) parseDevice(w *words) error {
	if err := w.expect(kernel.Device, "type", "dummy"); err != nil {
		return err
	}
	return f.admin(kernel.Create, kernel.DummyDevice{})
}

func (f *Fake) parseAddress(w *words) error {
	return f.parseBound(w, kernel.OnDevice, "dev", kernel.Device)
}

func (f *Fake) parseRoute(w *words) error {
	if err := w.expect("local"); err != nil {
		return err
	}
	return f.parseBound(w, kernel.Routed, "dev", kernel.Device, "table", "local", "proto", strconv.Itoa(kernel.RouteProtocol))
}

func (f *Fake) parseBound(w *words, binding kernel.Binding, rest ...string) error {
	prefix, err := netip.ParsePrefix(w.next())
	if err != nil {
		return err
	}
	if !prefix.IsSingleIP() {
		return fmt.Errorf("want /%d", prefix.Addr().BitLen())
	}
	if err := w.expect(rest...); err != nil {
		return err
	}
	return f.AddAddress(kernel.BoundAddress{Addr: prefix.Addr(), Binding: binding})
}

func (f *Fake) parseSet(w *words) error {
	s := kernel.Set{Name: w.next(), Type: kernel.SetType(strings.Join(w.until("family"), " "))}
	switch family := w.next(); family {
	case "inet":
		s.Family = inet.IPv4
	case "inet6":
		s.Family = inet.IPv6
	default:
		return fmt.Errorf("family %q: must be inet or inet6", family)
	}
	if err := w.expect("maxelem"); err != nil {
		return err
	}
	n, err := w.number()
	s.MaxElem, s.Stray = n, w.comment != ""
	if err != nil {
		return err
	}
	return f.CreateSet(s)
}

func (f *Fake) parseMember(w *words) error {
	set := w.next()
	e, err := parseElement(w.next())
	if err != nil {
		return err
	}
	if f.isNet(set) && e.Bits2 == 0 { // a range of one address is printed without its length
		e.Bits2 = uint8(e.Addr2.BitLen())
	}
	return f.AddMember(kernel.Member{Set: set, Element: e})
}

func (f *Fake) isNet(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	set := f.sets[name]
	return set != nil && set.Type == kernel.HashIPPortNet
}

func parseElement(text string) (kernel.Element, error) {
	var e kernel.Element
	var err error
	parts := strings.Split(text, ",")
	if len(parts) > 3 {
		return e, fmt.Errorf("element %q has %d parts", text, len(parts))
	}
	if e.Addr, err = netip.ParseAddr(parts[0]); err != nil || len(parts) == 1 {
		return e, err
	}
	protocol, port, _ := strings.Cut(parts[1], ":")
	if e.Protocol, err = inet.ParseProtocol(protocol); err != nil {
		return e, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	e.Port = uint16(n)
	if err != nil || len(parts) == 2 {
		return e, err
	}
	if !strings.Contains(parts[2], "/") {
		e.Addr2, err = netip.ParseAddr(parts[2])
		return e, err
	}
	r, err := netip.ParsePrefix(parts[2])
	if err == nil && r.Bits() == 0 {
		err = fmt.Errorf("range %s: length must be at least 1 bit", r)
	}
	e.Addr2, e.Bits2 = r.Addr(), uint8(r.Bits())
	return e, err
}

func (f *Fake) parseRule(family inet.Family, w *words) error {
	table, command, chain := w.next(), w.next(), w.next()
	id := kernel.ChainID{Table: table, Chain: chain}
	if builtin[table] == nil || chain == "" || strings.ContainsAny(chain, " \t\n\"'#\\") {
		return fmt.Errorf("%s: must name a built-in table, and a chain without blanks or quotes", id)
	}
	switch command {
	case "-N":
		return f.newChain(family, id)
	case "-A":
		l := line{args: w.rest(), foreign: true}
		if w.commented {
			l = ownLine(l.args, w.comment)
		}
		return f.appendLine(family, id, l)
	}
	return fmt.Errorf("%q: must be -N or -A", command)
}

func (f *Fake) parseServer(w *words) error {
	key, err := w.server()
	if err != nil {
		return err
	}
	s := kernel.Server{Key: key, MaskBits: uint8(key.Family().Bits())}
	for err == nil && w.more() {
		switch option := w.next(); option {
		case "-s":
			s.Scheduler = w.next()
		case "-p":
			s.Flags |= kernel.FlagPersistent
			s.Timeout, err = w.number()
		case "-M":
			s.MaskBits, err = parseMask(w.next(), key.Family())
		case "-b":
			var flags uint32
			flags, err = schedulerFlags(w.next())
			s.Flags |= flags
		case "-o":
			s.Flags |= kernel.FlagOnePacket
		default:
			err = fmt.Errorf("unknown option %q", option)
		}
	}
	if err != nil {
		return err
	}
	return f.AddServer(s)
}

// An IPv6 mask is a prefix length; an IPv4 mask has the form 255.255.255.0.
func parseMask(text string, f inet.Family) (uint8, error) {
	if f == inet.IPv6 {
		n, err := strconv.ParseUint(text, 10, 8)
		return uint8(n), err
	}
	mask, err := netip.ParseAddr(text)
	if err != nil || !mask.Is4() {
		return 0, fmt.Errorf("mask %q: must be like 255.255.255.0", text)
	}
	ones, bits := net.IPMask(mask.AsSlice()).Size()
	if bits == 0 {
		return 0, fmt.Errorf("mask %q is not contiguous", text)
	}
	return uint8(ones), nil
}

func schedulerFlags(text string) (uint32, error) {
	names := map[string]uint32{
		"flag-1": kernel.FlagSched1, "sh-fallback": kernel.FlagSched1, "mh-fallback": kernel.FlagSched1,
		"flag-2": kernel.FlagSched2, "sh-port": kernel.FlagSched2, "mh-port": kernel.FlagSched2,
		"flag-3": kernel.FlagSched3,
	}
	var flags uint32
	for _, name := range strings.Split(text, ",") {
		if names[name] == 0 {
			return 0, fmt.Errorf("unknown scheduler flag %q", name)
		}
		flags |= names[name]
	}
	return flags, nil
}

func (f *Fake) parseDestination(w *words) error {
	key, err := w.server()
	if err != nil {
		return err
	}
	d := kernel.ServerDestination{Server: key}
	how := kernel.ForwardMasq
	for err == nil && w.more() {
		option := w.next()
		if forwarding, ok := forwardingOf(option); ok {
			how = forwarding
			continue
		}
		switch option {
		case "-r":
			d.Addr, err = netip.ParseAddrPort(w.next())
		case "-w":
			d.Weight, err = w.number()
		case "-x":
			d.Upper, err = w.number()
		case "-y":
			d.Lower, err = w.number()
		default:
			err = fmt.Errorf("unknown option %q", option)
		}
	}
	if err != nil {
		return err
	}
	if err := f.AddDestination(d); err != nil {
		return err
	}
	if err := f.SetForwarding(d, how); err != nil {
		return err
	}
	return f.parseConnections(d, w)
}

func forwardingOf(option string) (kernel.Forwarding, bool) {
	for forwarding, text := range forwardings {
		if text == option {
			return forwarding, true
		}
	}
	return 0, false
}

func (f *Fake) parseConnections(d kernel.ServerDestination, w *words) error {
	if !w.commented {
		return nil
	}
	var s kernel.DestinationStats
	_, err := fmt.Sscanf(w.comment, "active %d inactive %d persistent %d", &s.Active, &s.Inactive, &s.Persistent)
	if err != nil {
		return fmt.Errorf("connections %q: %w", w.comment, err)
	}
	f.setStats(d, s)
	return nil
}
