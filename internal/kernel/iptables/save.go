package iptables

import (
	"fmt"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// builtIn lists the chains that the kernel calls itself. Owned jumps exist only in these chains.
var builtIn = map[string]bool{"PREROUTING": true, "INPUT": true, "FORWARD": true, "OUTPUT": true, "POSTROUTING": true}

// tagOf returns the tag of an owned rule; it is empty for a foreign one. A rule in a foreign chain is foreign, regardless of its comment.
func tagOf(r kernel.SavedRule, ours map[kernel.ChainID]bool) string {
	if !ours[r.ChainID] && !builtIn[r.Chain] {
		return ""
	}
	// Do the cheap test first: with another proxy on the node, nearly all of the many thousand rules are foreign.
	if !strings.Contains(r.Spec, kernel.TagPrefix) {
		return ""
	}
	return ParseRule(r.ChainID, r.Spec).Tag
}

type saved struct {
	chains   map[kernel.ChainID]bool
	policies map[kernel.ChainID]string
	rules    []kernel.SavedRule
}

// parseSave reads the output of save for the given tables. It returns an error if native nftables rules prevent iptables from showing a
// table, because the table would look empty.
func parseSave(text string, tables map[string]bool) (saved, error) {
	s := saved{chains: map[kernel.ChainID]bool{}, policies: map[kernel.ChainID]string{}}
	table := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, incompatiblePrefix):
			if name, ok := incompatible(line); ok && tables[name] {
				return saved{}, fmt.Errorf("read table %s: it has nft rules that iptables cannot show; move them to a table with another name", name)
			}
		case strings.HasPrefix(line, "*"):
			table = line[1:]
		case !tables[table]:
		case line == "COMMIT":
			table = ""
		case strings.HasPrefix(line, ":"):
			// For example, ":INPUT ACCEPT [0:0]". User-defined chains have "-" as the policy.
			name, rest, _ := strings.Cut(line[1:], " ")
			id := kernel.ChainID{Table: table, Chain: name}
			s.chains[id] = true
			if policy, _, _ := strings.Cut(rest, " "); policy != "" && policy != "-" {
				s.policies[id] = policy
			}
		case strings.HasPrefix(line, "-A "):
			name, spec, _ := strings.Cut(line[len("-A "):], " ")
			s.rules = append(s.rules, kernel.SavedRule{ChainID: kernel.ChainID{Table: table, Chain: name}, Spec: spec})
		}
	}
	if tables[table] {
		return saved{}, fmt.Errorf("read table %s: the output is truncated", table)
	}
	return s, nil
}

const incompatiblePrefix = "# Table `"

// incompatible reads the line "# Table `nat' is incompatible, use 'nft' tool."
func incompatible(line string) (table string, ok bool) {
	table, rest, ok := strings.Cut(strings.TrimPrefix(line, incompatiblePrefix), "'")
	return table, ok && strings.Contains(rest, "incompatible")
}

func (s saved) view(ours map[kernel.ChainID]bool) kernel.RulesView {
	v := kernel.RulesView{Chains: map[kernel.ChainID][]string{}, Jumps: map[kernel.ChainID][]string{}}
	for id := range s.chains {
		if ours[id] {
			v.Chains[id] = []string{}
		}
	}
	for _, r := range s.rules {
		tag := tagOf(r, ours)
		switch {
		case ours[r.ChainID]:
			v.Chains[r.ChainID] = append(v.Chains[r.ChainID], tag)
			if tag == "" {
				if v.Foreign == nil {
					v.Foreign = map[kernel.ChainID][]string{}
				}
				v.Foreign[r.ChainID] = append(v.Foreign[r.ChainID], r.Spec)
			}
		case tag != "":
			v.Jumps[r.ChainID] = append(v.Jumps[r.ChainID], tag)
		}
	}
	v.Ahead = s.ahead(ours)
	return v
}

// ahead lists the rules that accept packets before an owned jump in a chain where order matters. It returns nil if there are none.
func (s saved) ahead(ours map[kernel.ChainID]bool) (ahead map[kernel.ChainID][]string) {
	accepting := map[kernel.ChainID][]string{}
	for _, r := range s.rules {
		switch {
		case !builtIn[r.Chain] || !r.OrderDecides():
		case tagOf(r, ours) == "":
			if v, final := ParseRule(r.ChainID, r.Spec).Rule.Verdict.(kernel.Final); final && kernel.EndsChain(string(v)) {
				accepting[r.ChainID] = append(accepting[r.ChainID], r.Spec)
			}
		case len(accepting[r.ChainID]) > 0:
			if ahead == nil {
				ahead = map[kernel.ChainID][]string{}
			}
			ahead[r.ChainID] = accepting[r.ChainID]
		}
	}
	return ahead
}

// jumps compares the wanted jumps with the saved ones. Stale jumps are unwanted owned rules outside the owned chains: jumps with outdated
// text, duplicates, and jumps behind a rule that they must precede. The last kind also counts as missing, so it is inserted at the top.
func (s saved) jumps(ours map[kernel.ChainID]bool, want []kernel.Jump) (missing []kernel.Jump, stale []kernel.SavedRule) {
	type place struct {
		kernel.ChainID
		tag string
	}
	open, ahead := map[place]bool{}, s.ahead(ours)
	for _, j := range want {
		open[place{j.ChainID, j.Tag()}] = true
	}
	for _, r := range s.rules {
		tag := tagOf(r, ours)
		if tag == "" || ours[r.ChainID] {
			continue
		}
		p := place{r.ChainID, tag}
		if !open[p] || len(ahead[r.ChainID]) > 0 {
			stale = append(stale, r)
			continue
		}
		delete(open, p)
	}
	for _, j := range want {
		if open[place{j.ChainID, j.Tag()}] {
			missing = append(missing, j)
		}
	}
	return missing, stale
}
