package iptables

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// harmless lists targets that neither stop a packet nor affect its path: they write logs, count, set labels and priorities that only a
// queueing discipline or another program reads, or change header fields that no receiver requires.
var harmless = map[string]bool{
	"LOG": true, "NFLOG": true, "ULOG": true, "TRACE": true, "AUDIT": true, "CHECKSUM": true, "CLASSIFY": true, "DSCP": true, "TOS": true, "ECN": true,
	"TCPOPTSTRIP": true, "SECMARK": true, "CONNSECMARK": true, "IDLETIMER": true, "LED": true, "RATEEST": true,
}

// others lists targets that may stop a packet or change its path, at least with some options.
var others = map[string]bool{
	"NFQUEUE": true, "QUEUE": true, "SYNPROXY": true, "TARPIT": true, "STEAL": true, "DELUDE": true, "CHAOS": true, "HMARK": true, "CLUSTERIP": true, "RAWDNAT": true,
	"RAWSNAT": true, "ECHO": true, "DNETMAP": true, "TEE": true, "CT": true, "MARK": true, "TTL": true, "HL": true, "TCPMSS": true, "SET": true, "SNAT": true,
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
	case "DNAT", "REDIRECT", "TPROXY", "NETMAP", "DNPT":
		return kernel.Redirect{}
	case "NOTRACK":
		return kernel.NoTrack{}
	case "CONNMARK":
		return parseConnectionMark(words[1:])
	}
	v := parseOptions(target, words[1:])
	switch {
	case v != nil:
		return v
	case harmless[target] || mild(target, words[1:]):
		return kernel.Ignored(target)
	case others[target]:
		return kernel.OtherTarget(target)
	}
	return kernel.JumpTo(target)
}

// parseOptions parses the targets whose options explain evaluates. It returns nil for any other target.
func parseOptions(target string, options []string) kernel.Verdict {
	args := strings.Join(options, " ")
	switch target {
	case "MASQUERADE":
		if ports, ok := parseNATPorts(option(options, "--to-ports")); ok {
			return kernel.SourceNAT{Ports: ports}
		}
		return kernel.Masquerade{RandomPort: strings.Contains(args, "--random-fully")}
	case "SNAT":
		if v, ok := parseSource(option(options, "--to-source")); ok {
			return v
		}
	case "CT":
		return parseTracking(options)
	case "MARK": // iptables-save prints every option of MARK in this form
		if bits, mask, ok := parseMark(strings.TrimPrefix(args, "--set-xmark ")); ok {
			return kernel.ChangeMark{Invert: bits, Mask: mask}
		}
	}
	return nil
}

// option returns the argument of an option; it is empty if there is none.
func option(words []string, name string) string {
	if i := slices.Index(words, name); i >= 0 && i+1 < len(words) {
		return words[i+1]
	}
	return ""
}

// parseNATPorts parses 1024-2047 and 1024.
func parseNATPorts(text string) (kernel.Ports, bool) {
	if text == "" {
		return nil, false
	}
	return parsePorts(strings.Replace(text, "-", ":", 1))
}

// parseSource parses 192.0.2.1, 192.0.2.1-192.0.2.9:1024-2047, [fd00::1]:1024-2047 and the like.
func parseSource(text string) (v kernel.SourceNAT, ok bool) {
	addrs := text
	if at := strings.LastIndex(text, "]:"); at >= 0 {
		addrs = text[:at+1]
		v.Ports, ok = parseNATPorts(text[at+2:])
	} else if first, ports, has := strings.Cut(text, ":"); has && !strings.Contains(ports, ":") {
		addrs = first
		v.Ports, ok = parseNATPorts(ports)
	} else {
		ok = true
	}
	first, last, isRange := strings.Cut(strings.NewReplacer("[", "", "]", "").Replace(addrs), "-")
	if !isRange {
		last = first
	}
	var err, errLast error
	v.First, err = netip.ParseAddr(first)
	v.Last, errLast = netip.ParseAddr(last)
	return v, ok && err == nil && errLast == nil
}

// parseTracking returns nil for options that may affect a connection in another way.
func parseTracking(options []string) kernel.Verdict {
	zone, zones := kernel.SetZone{}, 0
	for _, o := range []struct {
		name  string
		there kernel.SetZone
	}{{"--zone", kernel.SetZone{Original: true, Reply: true}}, {"--zone-orig", kernel.SetZone{Original: true}}, {"--zone-reply", kernel.SetZone{Reply: true}}} {
		if n, err := strconv.ParseUint(option(options, o.name), 0, 16); err == nil {
			zone, zones = o.there, zones+1
			zone.Zone = uint16(n)
		}
	}
	switch {
	case zones == 1:
		return zone
	case zones == 0 && slices.Contains(options, "--notrack"):
		return kernel.NoTrack{}
	}
	return nil
}

// mild reports whether the options of a target make it harmless.
func mild(target string, options []string) bool {
	atLeast := func(name string, least int) bool {
		n, err := strconv.Atoi(option(options, name))
		return err == nil && n >= least
	}
	switch target {
	case "TTL":
		return atLeast("--ttl-set", kernel.EnoughHops) || atLeast("--ttl-inc", 0)
	case "HL":
		return atLeast("--hl-set", kernel.EnoughHops) || atLeast("--hl-inc", 0)
	case "TCPMSS":
		return slices.Contains(options, "--clamp-mss-to-pmtu") || atLeast("--set-mss", kernel.EnoughBytes)
	case "SET":
		return !slices.Contains(options, "--map-set")
	case "CT":
		return !slices.ContainsFunc(options, func(o string) bool { return strings.HasPrefix(o, "--zone") || o == "--timeout" })
	}
	return false
}
