package iptables

import (
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// ParseRule returns the conditions and verdicts of a rule that affect packets to Services. A condition or target of another kind becomes a
// kernel.Unknown or a kernel.OtherTarget.
func ParseRule(at kernel.ChainID, spec string) kernel.SavedRule {
	r := kernel.SavedRule{ChainID: at, Spec: spec}
	match := ""
	for words := r.Args(); len(words) > 0; {
		negated := words[0] == "!" && len(words) > 1
		if negated {
			words = words[1:]
		}
		option, rest := words[0], words[1:]
		if option == "-j" || option == "-g" {
			r.Rule.Verdict = parseVerdict(rest)
			if to, jumps := r.Rule.Verdict.(kernel.JumpTo); jumps && option == "-g" {
				r.Rule.Verdict = kernel.GoTo(to)
			}
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
		if option == "-m" { // the extension's own options follow
			match = strings.Join(rest[:end], " ")
			r.Rule.Conditions = append(r.Rule.Conditions, withoutOptions[match]...)
			continue
		}
		if !extras[option] && !extras[match+" "+option] {
			r.Rule.Conditions = addCondition(r.Rule.Conditions, match, option, strings.Join(rest[:end], " "), negated)
		}
	}
	return r
}

// addCondition adds the condition of an option, or changes the condition of the previous option.
func addCondition(all []kernel.Condition, match, option, args string, negated bool) []kernel.Condition {
	if last := len(all) - 1; strings.HasPrefix(option, "--limit-iface-") && last >= 0 {
		all[last] = ofInterface(all[last])
		return all
	}
	if option == "--invert" && len(all) > 0 {
		all[len(all)-1] = kernel.Negated{Condition: all[len(all)-1]}
		return all
	}
	c := parseCondition(match, option, args)
	if negated {
		c = kernel.Negated{Condition: c}
	}
	return append(all, c)
}

// ofInterface limits an address type to addresses of the packet's interface.
func ofInterface(c kernel.Condition) kernel.Condition {
	switch c := c.(type) {
	case kernel.Negated:
		return kernel.Negated{Condition: ofInterface(c.Condition)}
	case kernel.ToThisNode:
		return kernel.AddrType{OfInterface: true, Types: []string{"LOCAL"}}
	case kernel.FromThisNode:
		return kernel.AddrType{Source: true, OfInterface: true, Types: []string{"LOCAL"}}
	case kernel.AddrType:
		c.OfInterface = true
		return c
	}
	return c
}

func parseCondition(match, option, args string) kernel.Condition {
	text := strings.TrimSpace(option + " " + args)
	for _, name := range []string{match + " " + option, option} {
		if parse, known := options[name]; known {
			if c, ok := parse(args); ok {
				return c
			}
			return kernel.Unknown(text)
		}
	}
	switch {
	case notOurs[match]:
		return kernel.NotOurs(text)
	case match == "owner":
		return kernel.OfSocket(text)
	}
	return kernel.Unknown(text)
}

func parseConnectionMark(words []string) kernel.Verdict {
	packet, connection := ^uint32(0), ^uint32(0)
	for i, option := range words {
		if i+1 == len(words) {
			break
		}
		bits, mask, ok := parseMark(words[i+1])
		switch {
		case option == "--set-xmark" && ok:
			return kernel.ChangeConnectionMark{Invert: bits, Mask: mask}
		case option == "--nfmask" && ok:
			packet = bits
		case option == "--ctmask" && ok:
			connection = bits
		case option == "--mask" && ok:
			packet, connection = bits, bits
		}
	}
	switch {
	case slices.Contains(words, "--restore-mark"):
		return kernel.RestoreMark{ConnectionMask: connection, Mask: packet}
	case slices.Contains(words, "--save-mark"):
		return kernel.SaveMark{Mask: packet, ConnectionMask: connection}
	}
	return kernel.OtherTarget("CONNMARK")
}
