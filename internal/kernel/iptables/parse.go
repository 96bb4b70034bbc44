package iptables

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// ParseRule finds out what a rule does: the conditions and verdicts that matter to packets to Services. A verdict of another kind becomes a
// jump to a chain that does not exist, which has no effect.
func ParseRule(at kernel.ChainID, spec string) kernel.SavedRule {
	r := kernel.SavedRule{ChainID: at, Spec: spec}
	words := r.Args()
	for len(words) > 0 {
		negated := words[0] == "!" && len(words) > 1
		if negated {
			words = words[1:]
		}
		option, rest := words[0], words[1:]
		if option == "-j" || option == "-g" {
			r.Rule.Verdict = parseVerdict(rest)
			break
		}
		end := slices.IndexFunc(rest, func(word string) bool { return word == "!" || strings.HasPrefix(word, "-") })
		switch {
		case option == "--comment" && len(rest) > 0:
			end, r.Tag = 1, kernel.TagOf(rest[0])
			r.Rule.Why = strings.TrimSpace(strings.TrimPrefix(rest[0], r.Tag))
		case end < 0:
			end = len(rest)
		}
		words = rest[end:]
		c := parseCondition(option, strings.Join(rest[:end], " "))
		if negated {
			c = kernel.Negated{Condition: c}
		}
		if option != "-m" && option != "--comment" { // the extension's own options follow
			r.Rule.Conditions = append(r.Rule.Conditions, c)
		}
	}
	return r
}

// parseCondition parses an option with its arguments.
func parseCondition(option, args string) kernel.Condition {
	if parse, known := options[option]; known {
		if c, ok := parse(args); ok {
			return c
		}
	}
	return kernel.Unknown(strings.TrimSpace(option + " " + args))
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
	"-p": parseProtocol, "--dport": parsePorts, "--dports": parsePorts, "--ctstate": parseStates, "--state": parseStates,
	"--mark": func(args string) (kernel.Condition, bool) {
		bits, mask, ok := parseMark(args)
		return kernel.MarkIs{Bits: bits, Mask: mask}, ok
	},
	"--dst-type": func(args string) (kernel.Condition, bool) { return kernel.ToThisNode{}, args == "LOCAL" },
	"--src-type": func(args string) (kernel.Condition, bool) { return kernel.FromThisNode{}, args == "LOCAL" },
	"--match-set": func(args string) (kernel.Condition, bool) {
		set, key, ok := strings.Cut(args, " ")
		return kernel.InSet{Set: set, Key: kernel.SetKey(key)}, ok
	},
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

// parseProtocol returns protocol 0, which matches no packet to a Service, for protocols that Services cannot have.
func parseProtocol(name string) (kernel.Condition, bool) {
	protocol, err := inet.ParseProtocol(name)
	if n, numeric := strconv.ParseUint(name, 10, 8); err != nil && numeric == nil {
		protocol = inet.Protocol(n)
	}
	return kernel.OfProtocol{Protocol: protocol}, name != "all"
}

// parsePorts parses 80, 8000:8080 and lists of them.
func parsePorts(list string) (kernel.Condition, bool) {
	var ports kernel.Ports
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
	return kernel.ToPorts{Ports: ports}, true
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

func parseVerdict(words []string) kernel.Verdict {
	if len(words) == 0 {
		return nil
	}
	target, args := words[0], strings.Join(words[1:], " ")
	switch target {
	case "ACCEPT", "DROP", "RETURN":
		return kernel.Final(target)
	case "REJECT":
		return kernel.Reject(strings.TrimPrefix(args, "--reject-with "))
	case "MASQUERADE", "SNAT":
		return kernel.Masquerade{RandomPort: strings.Contains(args, "--random-fully")}
	case "DNAT", "REDIRECT", "TPROXY":
		return kernel.Redirect{}
	case "NOTRACK":
		return kernel.NoTrack{}
	case "CT":
		if slices.Contains(words, "--notrack") {
			return kernel.NoTrack{}
		}
	case "MARK": // iptables-save prints every option of MARK in this form
		if bits, mask, ok := parseMark(strings.TrimPrefix(args, "--set-xmark ")); ok {
			return kernel.ChangeMark{Invert: bits, Mask: mask}
		}
	}
	return kernel.JumpTo(target)
}
