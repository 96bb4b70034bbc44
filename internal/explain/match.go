package explain

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// matchResult reports whether a rule matches a packet.
type matchResult uint8

const (
	no matchResult = iota
	maybe
	yes
)

func (a matchResult) not() matchResult { return yes - a }

func resultOf(is bool) matchResult {
	if is {
		return yes
	}
	return no
}

// rule is a parsed iptables rule.
type rule struct {
	matches []match
	target  string
	options []string // of the target
	comment string
}

type match struct {
	name    string
	words   []string
	negated bool
}

// parse parses a rule as iptables-save prints it: options with their arguments, up to the target.
func parse(words []string) rule {
	var r rule
	negated := false
	for i := 0; i < len(words); i++ {
		word := words[i]
		switch {
		case word == "!":
			negated = true
			continue
		case word == "-j" || word == "-g":
			if i+1 < len(words) {
				r.target, r.options = words[i+1], words[i+2:]
			}
			return r
		case strings.HasPrefix(word, "-"):
			m := match{name: word, negated: negated}
			for i+1 < len(words) && words[i+1] != "!" && !strings.HasPrefix(words[i+1], "-") {
				i++
				m.words = append(m.words, words[i])
			}
			r.add(m)
		}
		negated = false
	}
	return r
}

func (r *rule) add(m match) {
	switch m.name {
	case "--comment":
		r.comment = strings.Join(m.words, " ")
	case "-m": // the extension's own options follow
	default:
		r.matches = append(r.matches, m)
	}
}

// condition is what decides whether an uncertain rule matches.
type condition struct {
	// text lists the matches with an unknown result.
	text string
	// opaque is true if explain cannot evaluate one of them. Otherwise the client decides, and naming it gives a certain answer.
	opaque bool
}

func (c condition) and(d condition) condition {
	return condition{strings.TrimSpace(c.text + " " + d.text), c.opaque || d.opaque}
}

// evaluate returns the least certain of the match results, and the condition if it is unknown.
func (r rule) evaluate(k *Kernel, p *packet) (matchResult, condition) {
	least, unknown := yes, condition{}
	for _, m := range r.matches {
		a := m.evaluate(k, p)
		if m.negated {
			a = a.not()
		}
		if a == maybe {
			unknown = unknown.and(condition{m.String(), !m.dependsOnClient(k, p)})
		}
		least = min(least, a)
	}
	return least, unknown
}

// dependsOnClient reports whether a match has an unknown result only because the client, or the interface on which it arrives, is unknown.
func (m match) dependsOnClient(k *Kernel, p *packet) bool {
	switch {
	case m.name == "-i":
		return p.in == ""
	case p.from.IsValid():
		return false
	}
	switch m.name {
	case "-s", "--src-type":
		return true
	case "--match-set":
		_, ours := k.Sets[strings.Join(m.words[:min(len(m.words), 1)], "")]
		return ours
	}
	return false
}

func (m match) String() string {
	text := m.name + " " + strings.Join(m.words, " ")
	if m.negated {
		return "! " + text
	}
	return text
}

func (m match) evaluate(k *Kernel, p *packet) matchResult {
	word := ""
	if len(m.words) > 0 {
		word = m.words[0]
	}
	switch m.name {
	case "-s":
		return within(p.from, word)
	case "-d":
		return within(p.to.Addr(), word)
	case "-p":
		return resultOf(isProtocol(p.protocol, word))
	case "-i":
		return arrives(p, word)
	case "-o":
		return through(p.out, word)
	case "--dport", "--dports":
		return resultOf(hasPort(p.to.Port(), word))
	case "--ctstate", "--state":
		return resultOf(slices.Contains(strings.Split(word, ","), p.tracking))
	case "--mark":
		return hasMark(p.mark, word)
	case "--dst-type":
		return localType(word, k.isLocal(p.to.Addr()))
	case "--src-type":
		if !p.from.IsValid() {
			return maybe
		}
		return localType(word, p.sent)
	case "--match-set":
		if len(m.words) == 2 {
			return inSet(k, p, word, m.words[1])
		}
	}
	return maybe
}

func within(a netip.Addr, text string) matchResult {
	if !a.IsValid() {
		return maybe
	}
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return resultOf(prefix.Contains(a))
	}
	if single, err := netip.ParseAddr(text); err == nil {
		return resultOf(single == a)
	}
	return maybe
}

// arrives matches the incoming interface, which packets sent by this node do not have. It records that a rule depends on it.
func arrives(p *packet, word string) matchResult {
	if p.sent {
		return no
	}
	p.arrivalAsked = true
	return through(p.in, word)
}

// through matches an interface name; a trailing plus is a wildcard.
func through(name, word string) matchResult {
	if name == "" {
		return maybe
	}
	if prefix, any := strings.CutSuffix(word, "+"); any {
		return resultOf(strings.HasPrefix(name, prefix))
	}
	return resultOf(name == word)
}

func isProtocol(p inet.Protocol, word string) bool {
	return word == p.String() || word == "all" || word == strconv.Itoa(int(p))
}

// hasPort parses 80, 8000:8080 and lists of them.
func hasPort(port uint16, list string) bool {
	return slices.ContainsFunc(strings.Split(list, ","), func(part string) bool {
		first, last, isRange := strings.Cut(part, ":")
		if !isRange {
			last = first
		}
		low, errLow := strconv.ParseUint(first, 10, 16)
		high, errHigh := strconv.ParseUint(last, 10, 16)
		return errLow == nil && errHigh == nil && uint64(port) >= low && uint64(port) <= high
	})
}

func hasMark(mark uint32, word string) matchResult {
	value, mask, err := parseMark(word)
	if err != nil {
		return maybe
	}
	return resultOf(mark&mask == value)
}

// parseMark parses 0x4000 and 0x4000/0xff00.
func parseMark(word string) (value, mask uint32, err error) {
	first, second, masked := strings.Cut(word, "/")
	v, err := strconv.ParseUint(first, 0, 32)
	if err != nil || !masked {
		return uint32(v), ^uint32(0), err
	}
	m, err := strconv.ParseUint(second, 0, 32)
	return uint32(v), uint32(m), err
}

func localType(word string, local bool) matchResult {
	if word != "LOCAL" {
		return maybe
	}
	return resultOf(local)
}

// inSet looks the packet up in one of the agent's ipsets. Other ipsets were not read.
func inSet(k *Kernel, p *packet, name, by string) matchResult {
	set, ours := k.Sets[name]
	if !ours {
		return maybe
	}
	members := k.Members[name]
	switch by {
	case "dst", "dst,dst":
		_, in := members[p.element(set.Type)]
		return resultOf(in)
	case "src":
		return holdsSource(p, members)
	case "dst,dst,src":
		return holdsClient(p, set.Type, members)
	}
	return maybe
}

// holdsSource looks up the client. An unknown client is assumed not to be an address of this node.
func holdsSource(p *packet, members map[kernel.Element]struct{}) matchResult {
	_, in := members[kernel.Element{Addr: p.from}]
	return resultOf(p.from.IsValid() && in)
}

// holdsClient looks up the frontend together with the client.
func holdsClient(p *packet, t kernel.SetType, members map[kernel.Element]struct{}) matchResult {
	place, found := p.element(t), false
	for e := range members {
		if e.Addr != place.Addr || e.Port != place.Port || e.Protocol != place.Protocol {
			continue
		}
		bits := int(e.Bits2)
		if bits == 0 {
			bits = e.Addr2.BitLen()
		}
		if p.from.IsValid() && netip.PrefixFrom(e.Addr2, bits).Contains(p.from) {
			return yes
		}
		found = true
	}
	if found && !p.from.IsValid() {
		return maybe
	}
	return no
}
