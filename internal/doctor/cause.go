package doctor

import (
	"cmp"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/finding"
)

// effect describes how one cause affects one path.
type effect struct {
	Walk
	// verdict is the verdict on the path if nothing else affects it.
	verdict explain.Verdict
	// later is true if the cause affects only packets that follow the first one.
	later bool
	// texts describe the cause. keys identify the cause by its foreign rules, or otherwise by the texts without addresses.
	texts []explain.Cause
	keys  []string
}

// effects returns an effect for each foreign rule, one for all of the agent's objects, and one for all causes that explain cannot judge.
func (w Walk) effects() (all []effect) {
	own, doubts := effect{Walk: w, verdict: explain.Passes}, effect{Walk: w, verdict: explain.Passes}
	judged := false
	for _, c := range w.Causes {
		verdict := c.Verdict
		if verdict == explain.Partly && w.Verdict == explain.Stops { // no endpoint is left
			verdict = explain.Stops
		}
		judged = judged || verdict == w.Verdict && verdict != explain.Passes
		if len(c.Rules) > 0 {
			all = append(all, effect{w, verdict, c.Later, []explain.Cause{c}, c.Rules})
			continue
		}
		switch verdict {
		case explain.Unclear, explain.Depends, explain.Unknown:
			doubts.add(c, verdict)
		default:
			own.add(c, verdict)
		}
	}
	if !judged {
		own.verdict = w.Verdict
	}
	if own.verdict != explain.Passes || w.Verdict == explain.Passes {
		all = append(all, own.identified())
	}
	if len(doubts.texts) > 0 {
		all = append(all, doubts.identified())
	}
	return all
}

func (e *effect) add(c explain.Cause, verdict explain.Verdict) {
	if e.texts = append(e.texts, c); verdict.Compare(e.verdict) < 0 {
		e.verdict = verdict
	}
}

// identified sets the keys. It uses notes only if the effect has no other texts.
func (e effect) identified() effect {
	notes := slices.DeleteFunc(slices.Clone(e.texts), func(c explain.Cause) bool { return c.Verdict != explain.Passes })
	for _, c := range e.texts {
		if c.Verdict != explain.Passes || len(notes) == len(e.texts) {
			e.keys = append(e.keys, keysOf(c)...)
		}
	}
	if e.verdict == explain.Passes || len(e.keys) == 0 {
		e.keys = []string{string(e.verdict)}
	}
	return e
}

// cause is a problem of one or more paths.
type cause struct {
	keys    []string
	effects []effect
}

// join adds an effect to the cause that has one of its keys. If several causes have one of its keys, join merges them.
func join(causes []*cause, e effect) (all []*cause) {
	mine := &cause{}
	for _, c := range causes {
		switch shared := slices.ContainsFunc(c.keys, func(key string) bool { return slices.Contains(e.keys, key) }); {
		case !shared:
			all = append(all, c)
			continue
		case len(mine.effects) == 0:
			all = append(all, mine)
		}
		mine.keys, mine.effects = append(mine.keys, c.keys...), append(mine.effects, c.effects...)
	}
	if len(mine.effects) == 0 {
		all = append(all, mine)
	}
	mine.keys, mine.effects = append(mine.keys, e.keys...), append(mine.effects, e)
	return all
}

// finding names a client other than this node in the remedy, if there is one: this node's packets to a Service have the Service's own address as
// their source.
func (c *cause) finding(f *Facts) finding.Finding {
	slices.SortStableFunc(c.effects, func(a, b effect) int {
		first, _ := a.judge("")
		second, _ := b.judge("")
		return cmp.Or(finding.Compare(first, second), a.verdict.Compare(b.verdict))
	})
	why, varies := c.why()
	severity, problem := c.effects[0].judge(why)
	if problem == unexplained {
		problem = f.explainFailures()
	}
	var evidence []string
	for _, e := range c.effects {
		text := e.String()
		if varies {
			text += c.otherAddresses(text)
		}
		if !slices.Contains(evidence, text) {
			evidence = append(evidence, text)
		}
	}
	client := max(0, slices.IndexFunc(c.effects, func(e effect) bool { return e.Sender != fromNode }))
	return finding.New(severity, "path", problem, examples(evidence), c.effects[client].remedy())
}

// why describes the cause. It adds texts until they cover all keys, and begins with the most serious effects. If texts differ only in their
// addresses, it replaces the addresses, and varies is true.
func (c *cause) why() (text string, varies bool) {
	variants := map[string][]string{}
	var order, explained []string
	for _, e := range c.effects {
		for _, t := range e.texts {
			plain := general(t)
			if !slices.Contains(variants[plain], t.Text) {
				variants[plain] = append(variants[plain], t.Text)
			}
			for _, key := range keysOf(t) {
				if !slices.Contains(explained, key) {
					explained = append(explained, key)
					order = append(order, plain)
				}
			}
		}
	}
	order = slices.Compact(order)
	for i, plain := range order {
		if len(variants[plain]) == 1 {
			order[i] = variants[plain][0]
		} else {
			varies = true
		}
	}
	return strings.Join(examples(order), "; "), varies
}

// otherAddresses lists the addresses in the texts about a path. It omits the addresses in the path's description.
func (c *cause) otherAddresses(path string) string {
	var others []string
	for _, e := range c.effects {
		if e.String() != path {
			continue
		}
		for _, t := range e.texts {
			replaceAddresses(t, func(address string) string {
				if !strings.Contains(path, address) && !slices.Contains(others, address) {
					others = append(others, address)
				}
				return address
			})
		}
	}
	if len(others) == 0 {
		return ""
	}
	return ", ADDRESS: " + strings.Join(examples(others), ", ")
}

func keysOf(c explain.Cause) []string {
	if len(c.Rules) > 0 {
		return c.Rules
	}
	return []string{general(c)}
}

// general returns the text without addresses, so that the texts of one cause are equal.
func general(c explain.Cause) string {
	return replaceAddresses(c, func(string) string { return "ADDRESS" })
}

// candidate matches text that may be a prefix or an address, with or without a port.
var candidate = regexp.MustCompile(`[0-9a-fA-F:.\[\]/]{2,}`)

// replaceAddresses replaces the addresses in a text, but not those in foreign rules at its end.
func replaceAddresses(c explain.Cause, by func(string) string) string {
	text, rules := c.Text, ""
	if len(c.Rules) > 0 {
		if i := strings.LastIndex(text, strings.Join(c.Rules, ", ")); i >= 0 {
			text, rules = text[:i], text[i:]
		}
	}
	return candidate.ReplaceAllStringFunc(text, func(text string) string {
		for _, address := range []string{text, strings.TrimRight(text, ".:")} {
			if isAddress(address) {
				return by(address) + text[len(address):]
			}
		}
		return text
	}) + rules
}

func isAddress(text string) bool {
	_, err := netip.ParseAddr(text)
	_, err2 := netip.ParseAddrPort(text)
	_, err3 := netip.ParsePrefix(text)
	return err == nil || err2 == nil || err3 == nil
}
