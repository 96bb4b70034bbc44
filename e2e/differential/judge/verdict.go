package judge

import (
	"fmt"
	"slices"
	"strings"
)

// Tally counts what was compared, and how often each rule judged.
type Tally struct {
	Compared map[Kind]int     `json:"compared"`
	Rules    map[string]Usage `json:"rules"`
	// Concerned counts all pairs of a client and a virtual server by the rule that speaks of them, also the many that are
	// not tried; under an empty name those of which no rule speaks.
	Concerned map[string]int `json:"concerned"`
}

// Usage is how often a rule's condition held, and how often there was the difference that it expects.
type Usage struct {
	Held    int `json:"held"`
	Matched int `json:"matched"`
}

// NewTally returns an empty one.
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

// Bug is an item that is not as it must be.
type Bug struct {
	Item Item
	// Rule says which rule's condition held, and what was wrong about it; empty if none did.
	Rule string
}

func (b Bug) String() string {
	if b.Rule == "" {
		return b.Item.String() + "\n    no rule says why"
	}
	return b.Item.String() + "\n    " + b.Rule
}

// Judge looks at every item, and returns those that no rule explains.
func (c *Case) Judge(items []Item, tally *Tally) []Bug {
	var bugs []Bug
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

// rule returns the first one whose condition holds.
func (c *Case) rule(i Item) *Rule {
	for r := range Rules {
		if slices.Contains(Rules[r].Kinds, i.Kind) && Rules[r].applies(c, i) {
			return &Rules[r]
		}
	}
	return nil
}

// Concerns says which rule's condition holds for connections from a client to a key; empty for none.
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
		return "its condition holds, but there is no difference: it promises too much"
	case i.same():
		return ""
	case !rule.expects(c, i):
		return "its condition holds, but these are not the values that it expects"
	}
	usage.Matched++
	return ""
}

// LongRun is how many batches make a run that meets every rule: some differences are matters of chance.
const LongRun = 5

// Faults names the rules that match too much and, in a long run, those that never matched.
func (t *Tally) Faults(batches int) []string {
	var faults []string
	for _, r := range Rules {
		held, compared := t.scope(r)
		switch {
		case t.Rules[r.ID].Matched == 0 && batches >= LongRun:
			faults = append(faults, fmt.Sprintf("rule %s never matched: remove it, or draw what it speaks of", r.ID))
		case float64(held) > r.AtMost*float64(compared):
			faults = append(faults, fmt.Sprintf("rule %s speaks of %d of %d: at most %.0f%% are allowed", r.ID, held, compared, 100*r.AtMost))
		}
	}
	return faults
}

// scope says of how much a rule speaks, out of how much.
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

// String is a table of what was compared and which rules were used.
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
