package judge

import (
	"fmt"
	"slices"
	"strings"
)

// Tally counts the compared items and the use of each rule.
type Tally struct {
	Compared map[Kind]int     `json:"compared"`
	Rules    map[string]Usage `json:"rules"`
	// Concerned counts pairs of a client and a virtual server by the rule whose condition they meet, including pairs
	// that are not tested. Pairs without a rule have the key "".
	Concerned map[string]int `json:"concerned"`
}

// Usage counts how often a rule's condition held, and how often the expected difference was found.
type Usage struct {
	Held    int `json:"held"`
	Matched int `json:"matched"`
}

// NewTally returns an empty tally.
func NewTally() *Tally {
	return &Tally{Compared: map[Kind]int{}, Rules: map[string]Usage{}, Concerned: map[string]int{}}
}

// Add adds another tally.
func (t *Tally) Add(o *Tally) {
	for kind, n := range o.Compared {
		t.Compared[kind] += n
	}
	for id, usage := range o.Rules {
		sum := t.Rules[id]
		sum.Held += usage.Held
		sum.Matched += usage.Matched
		t.Rules[id] = sum
	}
	for id, n := range o.Concerned {
		t.Concerned[id] += n
	}
}

// Bug is a difference that no rule explains, or whose values do not match its rule.
type Bug struct {
	Item Item
	// Rule names the rule and the problem. It is empty if no condition held.
	Rule string
}

func (b Bug) String() string {
	if b.Rule == "" {
		return b.Item.String() + "\n    no rule explains it"
	}
	return b.Item.String() + "\n    " + b.Rule
}

// Judge returns the items that are bugs.
func (c *Case) Judge(items []Item, tally *Tally) []Bug {
	var bugs []Bug
	for _, i := range items {
		if i.Kind == BoundAddress && bothServe(i) && c.onOtherNode(i.addr()) {
			c.kept[i.addr()] = true
		}
	}
	for _, i := range items {
		tally.Compared[i.Kind]++
		rule := c.rule(i)
		switch {
		case rule == nil && i.same():
		case rule == nil:
			bugs = append(bugs, Bug{Item: i})
		default:
			if wrong := c.apply(rule, i, tally); wrong != "" {
				bugs = append(bugs, Bug{i, "rule " + rule.ID + ": " + wrong})
			}
		}
	}
	return bugs
}

func (c *Case) rule(i Item) *Rule {
	for r := range Rules {
		if slices.Contains(Rules[r].Kinds, i.Kind) && Rules[r].applies(c, i) {
			return &Rules[r]
		}
	}
	return nil
}

// Concerns returns the rule's ID for connections from a client to a key, or "".
func (c *Case) Concerns(client string, key Key) string {
	if r := c.rule(Item{Kind: Connection, Client: client, Key: key}); r != nil {
		return r.ID
	}
	return ""
}

func (c *Case) apply(rule *Rule, i Item, tally *Tally) (wrong string) {
	usage := tally.Rules[rule.ID]
	usage.Held++
	defer func() { tally.Rules[rule.ID] = usage }()
	switch {
	case i.same() && rule.Always:
		return "the condition holds, but the programs do not differ: the rule must not be Always"
	case i.same():
		return ""
	case !rule.expects(c, i):
		return "the condition holds, but the values are not the expected ones"
	}
	usage.Matched++
	return ""
}

// LongRun is the number of batches after which every rule must have matched. In shorter runs, some rules may never
// match.
const LongRun = 5

// Faults describes rules that are too broad and, in a long run, rules that never matched.
func (t *Tally) Faults(batches int) []string {
	var faults []string
	for _, r := range Rules {
		held, compared := t.scope(r)
		switch {
		case t.Rules[r.ID].Matched == 0 && batches >= LongRun:
			faults = append(faults, fmt.Sprintf("rule %s never matched; remove it, or draw objects that meet its condition", r.ID))
		case float64(held) > r.AtMost*float64(compared):
			faults = append(faults, fmt.Sprintf("rule %s covers %d of %d items; the limit is %.0f%%", r.ID, held, compared, 100*r.AtMost))
		}
	}
	return faults
}

// scope returns the number of items that a rule covers, and the number of all items of its kinds.
func (t *Tally) scope(r Rule) (held, all int) {
	if slices.Equal(r.Kinds, []Kind{Connection}) {
		for _, n := range t.Concerned {
			all += n
		}
		return t.Concerned[r.ID], all
	}
	for _, k := range r.Kinds {
		all += t.Compared[k]
	}
	return t.Rules[r.ID].Held, all
}

// Counts returns a line with the number of compared items.
func (t *Tally) Counts() string {
	var counts []string
	for _, k := range []Kind{VirtualServer, Draining, BoundAddress, Connection} {
		counts = append(counts, fmt.Sprintf("%s %d", k, t.Compared[k]))
	}
	return strings.Join(counts, ", ")
}

// String returns a table of the compared items and the use of the rules.
func (t *Tally) String() string {
	var b strings.Builder
	for _, k := range []Kind{VirtualServer, Draining, BoundAddress, Connection} {
		fmt.Fprintf(&b, "%-30s %8d compared\n", k, t.Compared[k])
	}
	fmt.Fprintf(&b, "%-30s %8s %8s %8s %8s\n", "rule", "tried", "matched", "scope", "at most")
	for _, r := range Rules {
		held, all := t.scope(r)
		fmt.Fprintf(&b, "%-30s %8d %8d %7.1f%% %7.0f%%\n", r.ID, t.Rules[r.ID].Held, t.Rules[r.ID].Matched,
			100*float64(held)/float64(max(1, all)), 100*r.AtMost)
	}
	return b.String()
}
