package command

import (
	"bufio"
	"context"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"
)

const servicesFile = "/etc/services"

// lookupDeadline limits the total time of a command's lookups. The packaged ipvsadm waits for each name if the name
// server is down.
const lookupDeadline = 5 * time.Second

// systemNames resolves names as configured on this machine: ports from /etc/services, hosts from /etc/hosts and DNS. It
// reads files only when needed, and looks up each name once.
type systemNames struct {
	ctx      context.Context
	deadline time.Time
	ports    *portNames
	hosts    map[netip.Addr]string // "" if there is no name
}

// lookup returns the context for a host lookup. The first call starts the deadline.
func (n *systemNames) lookup() (context.Context, context.CancelFunc) {
	if n.deadline.IsZero() {
		n.deadline = time.Now().Add(lookupDeadline)
	}
	return context.WithDeadline(n.ctx, n.deadline)
}

func (n *systemNames) Addr(host string) (netip.Addr, bool) {
	ctx, cancel := n.lookup()
	defer cancel()
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip4", host)
	if err != nil || len(addrs) == 0 {
		return netip.Addr{}, false
	}
	return addrs[0].Unmap(), true
}

func (n *systemNames) Host(addr netip.Addr) (string, bool) {
	name, known := n.hosts[addr]
	if !known {
		name = n.lookupHost(addr)
		if n.hosts == nil {
			n.hosts = map[netip.Addr]string{}
		}
		n.hosts[addr] = name
	}
	return name, name != ""
}

func (n *systemNames) lookupHost(addr netip.Addr) string {
	ctx, cancel := n.lookup()
	defer cancel()
	names, err := net.DefaultResolver.LookupAddr(ctx, addr.String())
	if err != nil || len(names) == 0 {
		return ""
	}
	return strings.TrimSuffix(names[0], ".")
}

func (n *systemNames) Port(name, protocol string) (uint16, bool) {
	port, ok := n.portNames().numbers[portName{name, protocol}]
	return port, ok
}

func (n *systemNames) PortName(port uint16, protocol string) (string, bool) {
	name, ok := n.portNames().names[portNumber{port, protocol}]
	return name, ok
}

// portNames reads the file once. If the file does not exist, there are no names, as in ipvsadm.
func (n *systemNames) portNames() *portNames {
	if n.ports == nil {
		text, _ := os.ReadFile(servicesFile)
		n.ports = parsePortNames(string(text))
	}
	return n.ports
}

type portName struct{ name, protocol string }

type portNumber struct {
	port     uint16
	protocol string
}

type portNames struct {
	numbers map[portName]uint16
	names   map[portNumber]string
}

// parsePortNames reads lines such as "http-alt 8080/tcp webcache # a comment". The first line for a number or a name wins.
func parsePortNames(text string) *portNames {
	p := &portNames{numbers: map[portName]uint16{}, names: map[portNumber]string{}}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		line, _, _ := strings.Cut(lines.Text(), "#")
		p.line(strings.Fields(line))
	}
	return p
}

func (p *portNames) line(fields []string) {
	if len(fields) < 2 {
		return
	}
	number, protocol, _ := strings.Cut(fields[1], "/")
	port, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return
	}
	if key := (portNumber{uint16(port), protocol}); p.names[key] == "" {
		p.names[key] = fields[0]
	}
	for i, name := range fields {
		if i == 1 {
			continue // the number
		}
		if key := (portName{name, protocol}); p.numbers[key] == 0 {
			p.numbers[key] = uint16(port)
		}
	}
}
