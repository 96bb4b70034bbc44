package doctor

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
)

// cause is a problem of one or more paths.
type cause struct {
	severity finding.Severity
	problem  string
	// varies is true if the paths have the problem at different addresses.
	varies bool
	walks  []Walk
}

// add adds a path. general is its problem without addresses.
func (c *cause) add(w Walk, severity finding.Severity, problem, general string) {
	if c.problem != problem {
		c.problem, c.varies = general, true
	}
	if severity == finding.Broken {
		c.severity = severity
	}
	c.walks = append(c.walks, w)
}

// finding names a client other than this node in the remedy, if there is one: this node's packets to a Service have the Service's own address as
// their source.
func (c *cause) finding() finding.Finding {
	var evidence []string
	for _, w := range c.walks {
		text := w.String()
		if c.varies {
			text += w.otherAddresses()
		}
		evidence = append(evidence, text)
	}
	client := max(0, slices.IndexFunc(c.walks, func(w Walk) bool { return w.Sender != fromNode }))
	return finding.New(c.severity, "path", c.problem, examples(evidence), c.walks[client].remedy())
}

// otherAddresses lists the addresses in the reasons that the description of the path does not contain.
func (w Walk) otherAddresses() string {
	var others []string
	for _, reason := range w.Reasons {
		replaceAddresses(reason, func(address string) string {
			if !strings.Contains(w.String(), address) && !slices.Contains(others, address) {
				others = append(others, address)
			}
			return address
		})
	}
	if len(others) == 0 {
		return ""
	}
	return ", ADDRESS: " + strings.Join(examples(others), ", ")
}

// withoutAddresses replaces the addresses in reasons, so that reasons with one cause are equal, and removes repetitions.
func withoutAddresses(reasons []string) (general []string) {
	for _, reason := range reasons {
		text := replaceAddresses(reason, func(string) string { return "ADDRESS" })
		if !slices.Contains(general, text) {
			general = append(general, text)
		}
	}
	return general
}

var (
	// ruleText matches the words before the text of a rule. Its addresses identify the rule.
	ruleText = regexp.MustCompile(`\b(rule|matches|clients|masqueraded|evaluate them): `)
	// candidate matches everything that could be an address with a port or a prefix.
	candidate = regexp.MustCompile(`[0-9a-fA-F:.\[\]/]{2,}`)
)

// replaceAddresses replaces the addresses in a reason, but not those in the text of a rule.
func replaceAddresses(reason string, by func(string) string) string {
	rule := ""
	if at := ruleText.FindStringIndex(reason); at != nil {
		reason, rule = reason[:at[0]], reason[at[0]:]
	}
	return candidate.ReplaceAllStringFunc(reason, func(text string) string {
		for _, address := range []string{text, strings.TrimRight(text, ".:")} {
			if isAddress(address) {
				return by(address) + text[len(address):]
			}
		}
		return text
	}) + rule
}

func isAddress(text string) bool {
	_, err := netip.ParseAddr(text)
	_, err2 := netip.ParseAddrPort(text)
	_, err3 := netip.ParsePrefix(text)
	return err == nil || err2 == nil || err3 == nil
}
