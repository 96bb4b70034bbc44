package iptables

import (
	"cmp"
	"net/netip"
	"strconv"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// withoutOptions contains the conditions of extensions that need no option.
var withoutOptions = map[string][]kernel.Condition{
	"rpfilter": {kernel.ReversePath{}}, "socket": {kernel.NotOurs("-m socket")}, "ah": {kernel.NotOurs("-m ah")}, "esp": {kernel.NotOurs("-m esp")},
	"frag": {kernel.NotOurs("-m frag")}, "unclean": {kernel.NotOurs("-m unclean")},
}

// notOurs lists extensions whose options never match a packet to a Service. Such a packet is not ICMP, is not a fragment, has no extension
// headers, and is not addressed to a socket of this node.
var notOurs = map[string]bool{"socket": true, "icmp": true, "icmp6": true, "ah": true, "esp": true, "frag": true, "unclean": true, "mh": true, "dccp": true,
	"rt": true, "hbh": true, "dst": true, "ipv6header": true,
}

// extras lists options that are not conditions, or that match every packet. Some entries begin with the name of the extension.
var extras = map[string]bool{
	"--comment": true, "--nfacct-name": true, "limit --limit-burst": true, "recent --set": true, "recent --name": true, "recent --mask": true,
	"recent --rsource": true, "recent --rdest": true, "set --return-nomatch": true, "rpfilter --validmark": true, "rpfilter --loose": true,
	"rpfilter --accept-local": true,
}

var options = map[string]func(args string) (c kernel.Condition, ok bool){
	"-s": func(args string) (kernel.Condition, bool) {
		r, ok := parseRange(args)
		return kernel.From{Prefix: r}, ok
	},
	"-d": func(args string) (kernel.Condition, bool) {
		r, ok := parseRange(args)
		return kernel.To{Prefix: r}, ok
	},
	"-i": func(args string) (kernel.Condition, bool) { return parseInterface(args), true },
	"-o": func(args string) (kernel.Condition, bool) { return kernel.Leaves(parseInterface(args)), true },
	"-f": func(string) (kernel.Condition, bool) { return kernel.NotOurs("-f"), true },
	"-p": parseProtocol, "--dport": destinationPorts, "--dports": destinationPorts, "--sport": sourcePorts, "--sports": sourcePorts,
	"--ports": func(args string) (kernel.Condition, bool) {
		ports, ok := parsePorts(args)
		return kernel.EitherPorts{Ports: ports}, ok
	},
	"--ctstate": parseStates, "--state": parseStates,
	"--ctdir": func(args string) (kernel.Condition, bool) {
		return direction(args), args == "ORIGINAL" || args == "REPLY"
	},
	"--ctorigdst": func(args string) (kernel.Condition, bool) {
		r, ok := parseRange(args)
		return kernel.OriginalTo{Prefix: r}, ok
	},
	"--ctorigdstport": func(args string) (kernel.Condition, bool) {
		ports, ok := parsePorts(args)
		return kernel.OriginalToPorts{Ports: ports}, ok
	},
	"--mark": func(args string) (kernel.Condition, bool) {
		bits, mask, ok := parseMark(args)
		return kernel.MarkIs{Bits: bits, Mask: mask}, ok
	},
	"connmark --mark": func(args string) (kernel.Condition, bool) {
		bits, mask, ok := parseMark(args)
		return kernel.ConnectionMarkIs{Bits: bits, Mask: mask}, ok
	},
	"--dst-type": func(args string) (kernel.Condition, bool) {
		if args == "LOCAL" {
			return kernel.ToThisNode{}, true
		}
		return kernel.AddrType{Types: strings.Split(args, ",")}, true
	},
	"--src-type": func(args string) (kernel.Condition, bool) {
		if args == "LOCAL" {
			return kernel.FromThisNode{}, true
		}
		return kernel.AddrType{Source: true, Types: strings.Split(args, ",")}, true
	},
	"--pkt-type": func(args string) (kernel.Condition, bool) {
		if args == "unicast" {
			return kernel.Negated{Condition: kernel.NotOurs("--pkt-type others")}, true
		}
		return kernel.NotOurs("--pkt-type " + args), true
	},
	"--src-range": func(args string) (kernel.Condition, bool) { return parseAddresses(true, args) },
	"--dst-range": func(args string) (kernel.Condition, bool) { return parseAddresses(false, args) },
	"--match-set": func(args string) (kernel.Condition, bool) {
		set, key, ok := strings.Cut(args, " ")
		return kernel.InSet{Set: set, Key: kernel.SetKey(key)}, ok
	},
	"--tcp-flags": parseFlags, "length --length": parseLength,
	// Packets to the virtual addresses and from the endpoints are routed, so they cross a bridge only on the way to or from this node.
	"--physdev-is-bridged": func(string) (kernel.Condition, bool) { return kernel.NotOurs("--physdev-is-bridged"), true },
}

// parseLength parses 100, 100:200, :200 and 100:.
func parseLength(args string) (kernel.Condition, bool) {
	first, last, isRange := strings.Cut(args, ":")
	if !isRange {
		last = first
	}
	low, err := strconv.ParseUint(cmp.Or(first, "0"), 10, 32)
	high, errHigh := strconv.ParseUint(cmp.Or(last, "65535"), 10, 32)
	return kernel.Length{First: uint32(low), Last: uint32(high)}, err == nil && errHigh == nil
}

func direction(args string) kernel.Condition {
	if args == "REPLY" {
		return kernel.Replies{}
	}
	return kernel.Negated{Condition: kernel.Replies{}}
}

func parseAddresses(source bool, args string) (kernel.Condition, bool) {
	first, last, _ := strings.Cut(args, "-")
	a, err := netip.ParseAddr(first)
	b, errLast := netip.ParseAddr(last)
	return kernel.AddrRange{Source: source, First: a, Last: b}, err == nil && errLast == nil
}

var flagBits = map[string]uint8{"FIN": 1, "SYN": 2, "RST": 4, "PSH": 8, "ACK": 16, "URG": 32, "ALL": 63, "NONE": 0}

func parseFlags(args string) (kernel.Condition, bool) {
	var parsed [2]uint8
	known := true
	words := strings.Fields(args)
	for i := range min(len(words), len(parsed)) {
		for name := range strings.SplitSeq(words[i], ",") {
			bit, is := flagBits[name]
			parsed[i], known = parsed[i]|bit, known && is
		}
	}
	return kernel.TCPFlags{Mask: parsed[0], Set: parsed[1]}, known && len(words) == len(parsed)
}

func parseRange(text string) (netip.Prefix, bool) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(addr, addr.BitLen()), true
	}
	r, err := netip.ParsePrefix(text)
	return r.Masked(), err == nil
}

func parseInterface(text string) kernel.Arrives {
	name, isPrefix := strings.CutSuffix(text, "+")
	return kernel.Arrives{Interface: name, Prefix: isPrefix}
}

// For a protocol that Services cannot use, parseProtocol returns protocol 0, which matches no packet to a Service.
func parseProtocol(name string) (kernel.Condition, bool) {
	protocol, err := inet.ParseProtocol(name)
	if n, numeric := strconv.ParseUint(name, 10, 8); err != nil && numeric == nil {
		protocol = inet.Protocol(n)
	}
	return kernel.OfProtocol{Protocol: protocol}, name != "all"
}

func destinationPorts(list string) (kernel.Condition, bool) {
	ports, ok := parsePorts(list)
	return kernel.ToPorts{Ports: ports}, ok
}

func sourcePorts(list string) (kernel.Condition, bool) {
	ports, ok := parsePorts(list)
	return kernel.FromPorts{Ports: ports}, ok
}

// parsePorts parses a list of ports and ranges, such as 80,8000:8080.
func parsePorts(list string) (ports kernel.Ports, ok bool) {
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, ":")
		if !isRange {
			last = first
		}
		low, errLow := strconv.ParseUint(first, 10, 16)
		high, errHigh := strconv.ParseUint(last, 10, 16)
		if errLow != nil || errHigh != nil {
			return nil, false
		}
		ports = append(ports, kernel.PortRange{First: uint16(low), Last: uint16(high)})
	}
	return ports, true
}

func parseStates(list string) (kernel.Condition, bool) {
	return kernel.States(strings.Split(list, ",")), true
}

// parseMark parses 0x4000 and 0x4000/0xff00.
func parseMark(text string) (bits, mask uint32, ok bool) {
	first, second, masked := strings.Cut(text, "/")
	if !masked {
		second = "0xffffffff"
	}
	b, err := strconv.ParseUint(first, 0, 32)
	m, errMask := strconv.ParseUint(second, 0, 32)
	return uint32(b), uint32(m), err == nil && errMask == nil
}
