package iptables

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

var leftoverTables = map[string]bool{"nat": true, "filter": true, "mangle": true}

// leftovers contains kube-proxy's chains to delete, and its rules in chains that stay.
type leftovers struct {
	rules  []kernel.SavedRule
	chains []kernel.ChainID
	// kept describes the chains that stay because other programs use them. sets maps each kube-proxy ipset that remaining rules use to one of
	// these rules.
	kept []string
	sets map[string]string
}

// FindLeftovers lists what kube-proxy left behind in this variant, and the kube-proxy ipsets that remaining rules use. It does not load tables.
func (b *Backend) FindLeftovers(ctx context.Context) (found kernel.Leftovers, sets map[string]string, err error) {
	sets = map[string]string{}
	for _, f := range inet.Families {
		if f == inet.IPv6 && !KernelHasIPv6() {
			continue
		}
		if !installed(b.variant) {
			if err := b.hasHidden(ctx, f); err != nil {
				return kernel.Leftovers{}, nil, err
			}
			continue
		}
		s, err := b.save(ctx, f, leftoverTables)
		if err != nil {
			return kernel.Leftovers{}, nil, fmt.Errorf("look for kube-proxy's rules in iptables-%s: %w", b.variant, err)
		}
		l, place := s.leftovers(b.ours), string(b.variant)
		for _, r := range l.rules {
			found.Objects = append(found.Objects, kernel.Leftover{Place: place, Family: f, ChainID: r.ChainID, Spec: r.Spec})
		}
		for _, id := range l.chains {
			found.Objects = append(found.Objects, kernel.Leftover{Place: place, Family: f, ChainID: id})
		}
		for _, why := range l.kept {
			found.Kept = append(found.Kept, b.variant.command(f, "")+" "+why)
		}
		maps.Copy(sets, l.sets)
	}
	slices.SortStableFunc(found.Objects, func(a, b kernel.Leftover) int {
		return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.Table, b.Table))
	})
	return found, sets, nil
}

// hasHidden returns an error if the kernel has rules of this variant that the agent cannot read because the variant's programs are missing.
func (b *Backend) hasHidden(ctx context.Context, f inet.Family) error {
	tables, err := kernelTables(ctx, b.variant, f)
	if err != nil || !slices.Contains(tables, "nat") {
		return err
	}
	if b.variant == NFT {
		exist, err := inNFT(ctx, f, []nftObject{{"nat", "KUBE-SERVICES"}, {"nat", "KUBE-POSTROUTING"}, {"nat", "KUBE-PROXY-CANARY"}})
		if err != nil || !slices.Contains(exist, true) {
			return err
		}
	}
	return fmt.Errorf("the kernel has %s rules that may be kube-proxy's, but the programs of iptables-%s are not installed; run the command in the "+
		"agent's image, which contains them", f, b.variant)
}

// leftovers finds kube-proxy's rules and chains. The agent uses some of the same chain names. A chain is the agent's if a rule in it has
// the agent's tag. An empty chain is the agent's if the agent has any rules.
func (s saved) leftovers(ours map[kernel.ChainID]bool) leftovers {
	parsed, tagged := make([]kernel.SavedRule, len(s.rules)), map[kernel.ChainID]bool{}
	used := map[kernel.ChainID]bool{}
	for i, r := range s.rules {
		parsed[i], used[r.ChainID] = ParseRule(r.ChainID, r.Spec), true
		if tagOf(r, ours) != "" {
			tagged[r.ChainID] = true
		}
	}
	p := proxyChains{chains: map[kernel.ChainID]bool{}, kept: map[kernel.ChainID]bool{}, rules: parsed}
	for id := range s.chains {
		agents := ours[id] && (tagged[id] || !used[id] && len(tagged) > 0)
		if id.OfKubeProxy() && !agents {
			p.chains[id] = true
		}
	}
	p.keepUsed()
	l := leftovers{kept: p.why, sets: map[string]string{}}
	for i, r := range parsed {
		if to, jumps := r.JumpOfKubeProxy(); jumps && builtIn[r.Chain] && !p.kept[to] {
			l.rules = append(l.rules, s.rules[i])
		} else if !p.chains[r.ChainID] {
			for _, set := range setsOfKubeProxy(r) {
				l.sets[set] = r.String()
			}
		}
	}
	l.chains = p.inOrder()
	return l
}

type proxyChains struct {
	chains, kept map[kernel.ChainID]bool
	why          []string
	rules        []kernel.SavedRule
}

var markMasq, postrouting = kernel.ChainID{Table: "nat", Chain: "KUBE-MARK-MASQ"}, kernel.ChainID{Table: "nat", Chain: "KUBE-POSTROUTING"}

// keepUsed keeps the chains that other programs' rules jump to, and what these chains use.
func (p *proxyChains) keepUsed() {
	for _, r := range p.rules {
		if _, its := r.JumpOfKubeProxy(); p.chains[r.ChainID] || its && builtIn[r.Chain] {
			continue
		}
		if to := target(r); p.chains[to] {
			p.why = append(p.why, fmt.Sprintf("chain %s stays; another program's rule uses it: %s", to, r))
			p.keep(to)
		}
	}
	if p.kept[markMasq] { // KUBE-POSTROUTING masquerades the packets that KUBE-MARK-MASQ marks
		p.keep(postrouting)
	}
}

func (p *proxyChains) keep(id kernel.ChainID) {
	if !p.chains[id] {
		return
	}
	delete(p.chains, id)
	p.kept[id] = true
	for _, r := range p.rules {
		if r.ChainID == id {
			p.keep(target(r))
		}
	}
}

// inOrder lists the chains to delete, each before the chains that it jumps to, so that the kernel can delete them one by one.
func (p *proxyChains) inOrder() (chains []kernel.ChainID) {
	targets := map[kernel.ChainID][]kernel.ChainID{}
	for _, r := range p.rules {
		if to := target(r); p.chains[r.ChainID] && p.chains[to] {
			targets[r.ChainID] = append(targets[r.ChainID], to)
		}
	}
	visited := map[kernel.ChainID]bool{}
	var visit func(kernel.ChainID)
	visit = func(id kernel.ChainID) {
		if visited[id] {
			return
		}
		visited[id] = true
		for _, to := range targets[id] {
			visit(to)
		}
		chains = append(chains, id)
	}
	for _, id := range slices.SortedFunc(maps.Keys(p.chains), func(a, b kernel.ChainID) int { return cmp.Compare(b.String(), a.String()) }) {
		visit(id)
	}
	slices.Reverse(chains)
	return chains
}

func target(r kernel.SavedRule) kernel.ChainID {
	to := ""
	switch v := r.Rule.Verdict.(type) {
	case kernel.JumpTo:
		to = string(v)
	case kernel.GoTo:
		to = string(v)
	}
	return kernel.ChainID{Table: r.Table, Chain: to}
}

func setsOfKubeProxy(r kernel.SavedRule) (names []string) {
	if !strings.Contains(r.Spec, kernel.ProxySets) {
		return nil
	}
	words := r.Args()
	for i, word := range words[:max(len(words)-1, 0)] {
		if strings.HasSuffix(word, "-set") && kernel.SetOfKubeProxy(words[i+1]) {
			names = append(names, words[i+1])
		}
	}
	return names
}

// RemoveLeftovers deletes leftovers of this variant, each table in one step. It skips objects that are no longer leftovers.
func (b *Backend) RemoveLeftovers(ctx context.Context, ops []kernel.Op) []error {
	errs := make([]error, len(ops))
	for from := 0; from < len(ops); {
		first := ops[from].Object.(kernel.Leftover)
		var objects []kernel.Leftover
		for to := from; to < len(ops); to++ {
			l := ops[to].Object.(kernel.Leftover)
			if l.Family != first.Family || l.Table != first.Table {
				break
			}
			objects = append(objects, l)
		}
		err := b.removeLeftovers(ctx, first.Family, first.Table, objects)
		for range objects {
			if err != nil {
				errs[from] = fmt.Errorf("%s: %w", ops[from], err)
			}
			from++
		}
	}
	return errs
}

func (b *Backend) removeLeftovers(ctx context.Context, f inet.Family, table string, objects []kernel.Leftover) error {
	s, err := b.save(ctx, f, map[string]bool{table: true})
	if err != nil {
		return err
	}
	text := s.leftovers(b.ours).removal(table, objects)
	if text == "" {
		return nil
	}
	_, err = b.runner.run(ctx, text, b.variant.command(f, "-restore"), "-w", strconv.Itoa(lockWait), "--noflush")
	return explainRestore(err, text)
}

// removal writes the input for `restore --noflush` that deletes the objects that are still leftovers. All chains are emptied before any is
// deleted, because they jump to each other.
func (l leftovers) removal(table string, objects []kernel.Leftover) string {
	var declare, remove strings.Builder
	rules := slices.Clone(l.rules)
	for _, o := range objects {
		i := slices.IndexFunc(rules, func(r kernel.SavedRule) bool { return r.ChainID == o.ChainID && r.Spec == o.Spec })
		switch {
		case o.Spec != "" && i >= 0:
			rules = slices.Delete(rules, i, i+1) // the chain may contain the same rule twice
			writeLine(&remove, "-D", o.Chain, o.Spec)
		case o.Spec == "" && slices.Contains(l.chains, o.ChainID):
			declare.WriteString(":" + o.Chain + " - [0:0]\n")
			writeLine(&remove, "-X", o.Chain)
		}
	}
	if remove.Len() == 0 {
		return ""
	}
	return "*" + table + "\n" + declare.String() + remove.String() + "COMMIT\n"
}
