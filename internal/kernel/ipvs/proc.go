package ipvs

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// procFile lists the servers of the calling thread's network namespace with their destinations:
//
//	IP Virtual Server version 1.2.1 (size=4096)
//	Prot LocalAddress:Port Scheduler Flags
//	  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
//	TCP  0A600050:0050 lc persistent 360 FFFFFFFF
//	  -> 0AF40105:1F90      Masq    1      0          0
//	UDP  [fd00:0010:0096:0000:0000:0000:0000:000a]:0035 rr
//	FWM  00000001 rr
//
// Addresses, ports, masks and firewall marks are hexadecimal; all other numbers are decimal. The file lacks some fields that netlink
// reports for a server. However, netlink reports the destinations of only one server at a time. For 100,000 destinations, reading this file
// takes a sixth of the time.
const procFile = "/proc/thread-self/net/ip_vs"

var (
	procTitle       = []byte("IP Virtual Server version ")
	procDestination = []byte("  -> ")
)

const procTitleLines = 3

// destinations has an entry for every server in the file.
type destinations map[kernel.ServerKey][]kernel.ObservedDestination

// parseProc reads the file, except for firewall-mark servers, servers of unknown protocols, and their destinations.
func parseProc(b []byte) (destinations, error) {
	if !bytes.HasPrefix(b, procTitle) {
		return nil, errors.New("parse IPVS table: the version line is missing")
	}
	p := procParser{all: destinations{}}
	for number := 1; len(b) > 0; number++ {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte("\n"))
		if number <= procTitleLines {
			continue
		}
		if err := p.line(line); err != nil {
			return nil, fmt.Errorf("parse IPVS table: line %d %q: %w", number, line, err)
		}
	}
	p.flush()
	return p.all, nil
}

func parseServers(b []byte) (destinations, error) {
	p := procParser{all: destinations{}}
	for len(b) > 0 {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte("\n"))
		if err := p.line(line); err != nil {
			return nil, fmt.Errorf("parse IPVS table: line %q: %w", line, err)
		}
	}
	p.flush()
	return p.all, nil
}

type procParser struct {
	all    destinations
	key    kernel.ServerKey
	dests  []kernel.ObservedDestination
	inside bool // the current server has an address and a protocol that IPVS balances
}

func (p *procParser) flush() {
	if p.inside {
		p.all[p.key] = p.dests
	}
	p.inside, p.dests = false, nil
}

func (p *procParser) line(line []byte) error {
	if rest, ok := bytes.CutPrefix(line, procDestination); ok {
		if !p.inside {
			return nil
		}
		d, err := parseProcDestination(rest)
		p.dests = append(p.dests, d)
		return err
	}
	p.flush()
	name, rest := field(line)
	if string(name) == "FWM" {
		return nil // kernel.ServerKey cannot represent firewall-mark servers
	}
	text, _ := field(rest)
	addr, err := parseProcAddress(text)
	p.key.Addr = addr
	p.key.Protocol, p.inside = procProtocols[string(name)]
	return err
}

// procProtocols lacks protocols that IPVS never balances. Netlink accepts virtual servers with such a protocol from another program.
var procProtocols = map[string]inet.Protocol{"TCP": inet.TCP, "UDP": inet.UDP, "SCTP": inet.SCTP}

func parseProcDestination(b []byte) (kernel.ObservedDestination, error) {
	text, b := field(b)
	addr, err := parseProcAddress(text)
	if err != nil {
		return kernel.ObservedDestination{}, err
	}
	forward, b := field(b)
	numbers := [3]uint32{}
	for i := range numbers {
		text, b = field(b)
		n, err := strconv.ParseInt(string(text), 10, 32)
		if err != nil {
			return kernel.ObservedDestination{}, err
		}
		numbers[i] = uint32(max(n, 0)) // connection counters can be negative for a moment
	}
	return kernel.ObservedDestination{
		Destination: kernel.Destination{Addr: addr, Weight: numbers[0]},
		Forwarding:  procForwarding[string(forward)], // the kernel prints unknown methods as Masq
		Stats:       kernel.DestinationStats{Active: numbers[1], Inactive: numbers[2]},
	}, nil
}

var procForwarding = map[string]kernel.Forwarding{
	"Masq":   kernel.ForwardMasq,
	"Local":  kernel.ForwardLocal,
	"Tunnel": kernel.ForwardTunnel,
	"Route":  kernel.ForwardRoute,
}

func field(b []byte) (word, rest []byte) {
	b = bytes.TrimLeft(b, " ")
	i := bytes.IndexByte(b, ' ')
	if i < 0 {
		return b, nil
	}
	return b[:i], b[i:]
}

// parseProcAddress reads 0A600050:0050 or [fd00:0010:...:000a]:0035.
func parseProcAddress(b []byte) (netip.AddrPort, error) {
	i := bytes.LastIndexByte(b, ':')
	if i < 0 {
		return netip.AddrPort{}, errors.New("address without a port")
	}
	port, err := strconv.ParseUint(string(b[i+1:]), 16, 16)
	if err != nil {
		return netip.AddrPort{}, err
	}
	addr, err := parseProcIP(b[:i])
	return netip.AddrPortFrom(addr, uint16(port)), err
}

func parseProcIP(b []byte) (netip.Addr, error) {
	if len(b) > 2 && b[0] == '[' && b[len(b)-1] == ']' {
		addr, err := netip.ParseAddr(string(b[1 : len(b)-1]))
		if err == nil && (!addr.Is6() || addr.Zone() != "") {
			err = errors.New("not a plain IPv6 address")
		}
		return addr, err
	}
	n, err := strconv.ParseUint(string(b), 16, 32)
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}), err
}
