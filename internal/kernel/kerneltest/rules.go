package kerneltest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

var builtin = map[string][]string{
	"raw":      {"PREROUTING", "OUTPUT"},
	"mangle":   {"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"},
	"nat":      {"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"},
	"filter":   {"INPUT", "FORWARD", "OUTPUT"},
	"security": {"INPUT", "FORWARD", "OUTPUT"},
}

// targets contains the jump targets other than chains.
var targets = []string{
	"BALANCE", // only rules in nftables have it
	"ACCEPT", "CONNMARK", "CT", "DNAT", "DROP", "LOG", "MARK", "MASQUERADE", "NOTRACK", "REJECT", "RETURN", "SET", "SNAT",
	"TCPMSS",
}

// line is a rule in the kernel, as iptables arguments. Only our rules have a reason and a tag.
type line struct {
	args    []string
	why     string
	tag     string
	foreign bool
}

func lineOf(r kernel.Rule) line { return ownLine(r.Args(), r.Why) }

func ownLine(args []string, why string) line {
	return line{args: args, why: why, tag: kernel.TagFor(args, why)}
}

type tables map[kernel.ChainID][]line

func freshTables() tables {
	t := tables{}
	for table, chains := range builtin {
		for _, chain := range chains {
			t[kernel.ChainID{Table: table, Chain: chain}] = nil
		}
	}
	return t
}

func isBuiltin(id kernel.ChainID) bool { return slices.Contains(builtin[id.Table], id.Chain) }

func (f *Fake) ours(id kernel.ChainID) bool {
	return !isBuiltin(id) && (len(f.chains) == 0 || slices.Contains(f.chains, id))
}

func (f *Fake) readRules(s *kernel.State) {
	for family := range f.tables {
		if _, current := f.views[family]; !current {
			f.views[family] = f.viewRules(family)
		}
	}
	maps.Copy(s.Rules, f.views)
}

func (f *Fake) viewRules(family inet.Family) kernel.RulesView {
	view := kernel.RulesView{Chains: map[kernel.ChainID][]string{}, Jumps: map[kernel.ChainID][]string{}, Foreign: map[kernel.ChainID][]string{}}
	for id, lines := range f.tables[family] {
		if f.ours(id) {
			view.Chains[id] = chainTags(lines)
			view.Foreign[id] = foreignRules(lines)
		} else if tags := jumpTags(lines); len(tags) > 0 {
			view.Jumps[id] = tags
		}
		if rules := ahead(id, lines); len(rules) > 0 {
			if view.Ahead == nil {
				view.Ahead = map[kernel.ChainID][]string{}
			}
			view.Ahead[id] = rules
		}
	}
	return view
}

func (f *Fake) setTables(family inet.Family, t tables) {
	f.tables[family] = t
	delete(f.views, family)
}

func (f *Fake) setChain(family inet.Family, id kernel.ChainID, lines []line) {
	f.tables[family][id] = lines
	delete(f.views, family)
}

// ahead lists foreign rules that accept packets before our jumps.
func ahead(id kernel.ChainID, lines []line) (found []string) {
	if !isBuiltin(id) || !id.OrderDecides() {
		return nil
	}
	var accepting []string
	for _, l := range lines {
		if !l.foreign {
			found = accepting
		} else if kernel.EndsChain(l.target()) {
			accepting = append(accepting, strings.Join(l.args, " "))
		}
	}
	return found
}

func chainTags(lines []line) []string {
	tags := make([]string, len(lines))
	for i, l := range lines {
		tags[i] = l.tag
	}
	return tags
}

func foreignRules(lines []line) (rules []string) {
	for _, l := range lines {
		if l.foreign {
			rules = append(rules, strings.Join(l.args, " "))
		}
	}
	return rules
}

func jumpTags(lines []line) []string {
	var tags []string
	for _, l := range lines {
		if !l.foreign {
			tags = append(tags, l.tag)
		}
	}
	return tags
}

func (f *Fake) ruleNaming(name string) (string, bool) {
	for _, family := range inet.Families {
		for id, lines := range f.tables[family] {
			for _, l := range lines {
				if slices.Contains(setsNamed(l.args), name) {
					return fmt.Sprintf("%s %s", family, id), true
				}
			}
		}
	}
	return "", false
}

func setsNamed(args []string) []string {
	var names []string
	for i, arg := range args[:max(0, len(args)-1)] {
		switch arg {
		case "--match-set", "--map-set", "--add-set", "--del-set":
			names = append(names, args[i+1])
		}
	}
	return names
}

func (f *Fake) applyRules(verb kernel.Verb, rules kernel.Ruleset) error {
	if f.tables[rules.Family] == nil {
		return fmt.Errorf("family %s: %w", rules.Family, syscall.EINVAL)
	}
	switch verb {
	case kernel.Ensure:
		return f.ensureRules(rules)
	case kernel.Delete:
		f.deleteRules(rules.Family)
		return nil
	}
	return errVerb("a ruleset")
}

// Like iptables-restore --noflush, ensureRules writes each table completely or not at all. If it rejects a table, the tables that it has
// already written stay.
func (f *Fake) ensureRules(rules kernel.Ruleset) error {
	for _, table := range tableOrder {
		next := maps.Clone(f.tables[rules.Family])
		fill(next, rules, table)
		f.fillJumps(next, rules, table)
		if err := f.check(rules.Family, next, table); err != nil {
			return fmt.Errorf("iptables-restore: table %s: %w", table, err)
		}
		f.setTables(rules.Family, next)
	}
	return unknownTables(rules)
}

// The filter table comes first, because its rules are harmless without the rules in other tables.
var tableOrder = []string{"filter", "mangle", "nat", "raw", "security"}

func unknownTables(rules kernel.Ruleset) error {
	for _, c := range rules.Chains {
		if builtin[c.Table] == nil {
			return fmt.Errorf("iptables-restore: no table %s: %w", c.Table, syscall.ENOENT)
		}
	}
	return nil
}

func fill(t tables, rules kernel.Ruleset, table string) {
	for _, c := range rules.Chains {
		if c.Table != table {
			continue
		}
		lines := make([]line, len(c.Rules))
		for i, rule := range c.Rules {
			lines[i] = lineOf(rule)
		}
		t[c.ChainID] = lines
	}
}

// fillJumps inserts missing jumps at the top, in their order, and removes unwanted and duplicate jumps. Foreign rules and existing jumps
// keep their position, unless a rule that accepts packets precedes a jump and order matters.
func (f *Fake) fillJumps(t tables, rules kernel.Ruleset, table string) {
	missing := map[kernel.ChainID][]line{}
	open := map[kernel.ChainID]map[string]bool{}
	for _, j := range rules.Jumps {
		if j.Table != table {
			continue
		}
		if !slices.Contains(jumpTags(t[j.ChainID]), j.Tag()) || len(ahead(j.ChainID, t[j.ChainID])) > 0 {
			missing[j.ChainID] = append(missing[j.ChainID], lineOf(j.Rule))
			continue
		}
		if open[j.ChainID] == nil {
			open[j.ChainID] = map[string]bool{}
		}
		open[j.ChainID][j.Tag()] = true
	}
	for id, lines := range t {
		if id.Table != table || f.ours(id) {
			continue
		}
		kept := slices.DeleteFunc(slices.Clone(lines), func(l line) bool {
			stale := !l.foreign && !open[id][l.tag]
			if !l.foreign {
				delete(open[id], l.tag)
			}
			return stale
		})
		t[id] = append(missing[id], kept...)
	}
}

func (f *Fake) check(family inet.Family, t tables, table string) error {
	for id, lines := range t {
		if id.Table != table {
			continue
		}
		for _, l := range lines {
			if err := f.checkRule(family, t, table, l); err != nil {
				return fmt.Errorf("%s: %s: %w", id, l, err)
			}
		}
	}
	return nil
}

func (f *Fake) checkRule(family inet.Family, t tables, table string, l line) error {
	for _, name := range setsNamed(l.args) {
		set := f.sets[name]
		if set == nil {
			return fmt.Errorf("set %s doesn't exist: %w", name, syscall.EINVAL)
		}
		if set.Family != family {
			return fmt.Errorf("the protocol family of set %s is %s, which is not applicable: %w", name, set.Family, syscall.EINVAL)
		}
	}
	target := l.target()
	_, isChain := t[kernel.ChainID{Table: table, Chain: target}]
	if target != "" && !isChain && !slices.Contains(targets, target) {
		return fmt.Errorf("no chain or target %s: %w", target, syscall.ENOENT)
	}
	return nil
}

// deleteRules removes all our rules, even those that are not in the ruleset. Foreign rules stay, as does an emptied chain to which a
// foreign rule jumps.
func (f *Fake) deleteRules(family inet.Family) {
	t := maps.Clone(f.tables[family])
	defer f.setTables(family, t)
	wanted := map[kernel.ChainID]bool{} // used by foreign rules
	for id, lines := range t {
		t[id] = slices.DeleteFunc(slices.Clone(lines), func(l line) bool { return !l.foreign })
		for _, l := range t[id] {
			wanted[id] = true
			wanted[kernel.ChainID{Table: id.Table, Chain: l.target()}] = true
		}
	}
	for id := range t {
		if f.ours(id) && !wanted[id] {
			delete(t, id)
		}
	}
}

func (l line) target() string {
	for i, arg := range l.args[:max(0, len(l.args)-1)] {
		if arg == "-j" || arg == "-g" {
			return l.args[i+1]
		}
	}
	return ""
}

func (l line) String() string {
	text := strings.Join(quoteAll(l.args), " ")
	if !l.foreign {
		text += ourMark + l.why
	}
	return text
}

// SetOldRules sets what FindOldRules returns.
func (f *Fake) SetOldRules(rules ...kernel.OldRules) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.oldRules = rules
}

// AdoptRecords adopts nothing, because the fake contains no records of an earlier run.
func (f *Fake) AdoptRecords(ctx context.Context) error { return ctx.Err() }

// FindOldRules implements Kernel.
func (f *Fake) FindOldRules(ctx context.Context) ([]kernel.OldRules, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := errors.Join(ctx.Err(), f.faults.read()); err != nil {
		return nil, fmt.Errorf("look for old rules: %w", err)
	}
	return slices.Clone(f.oldRules), nil
}

func (f *Fake) applyOldRules(verb kernel.Verb, old kernel.OldRules) error {
	if verb != kernel.Delete {
		return errVerb("old rules")
	}
	f.oldRules = slices.DeleteFunc(f.oldRules, func(r kernel.OldRules) bool { return r == old })
	return nil
}

// SetLeftovers sets what FindLeftovers returns.
func (f *Fake) SetLeftovers(left kernel.Leftovers) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leftovers = left
}

// FindLeftovers implements the agent's kernel.
func (f *Fake) FindLeftovers(ctx context.Context) (kernel.Leftovers, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := errors.Join(ctx.Err(), f.faults.read()); err != nil {
		return kernel.Leftovers{}, fmt.Errorf("find leftovers of kube-proxy: %w", err)
	}
	return kernel.Leftovers{Objects: slices.Clone(f.leftovers.Objects), Kept: f.leftovers.Kept}, nil
}

func (f *Fake) applyLeftover(verb kernel.Verb, left kernel.Leftover) error {
	if verb != kernel.Delete {
		return errVerb("leftovers")
	}
	f.leftovers.Objects = slices.DeleteFunc(f.leftovers.Objects, func(l kernel.Leftover) bool { return l == left })
	return nil
}
