package iptables

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Leftovers are rules of ours in the variant of iptables that the node used at an earlier start. They work beside those in the
// present one, and nobody would ever repair or remove them.
type Leftovers struct {
	Variant  Variant
	Families []inet.Family
	backend  *Backend
}

// Elsewhere looks for our rules in the other variant. There are none (nil) if it is not installed. It loads no table: what is not
// loaded holds nothing.
func (b *Backend) Elsewhere(ctx context.Context) (*Leftovers, error) {
	other := b.variant.other()
	if !installed(other) {
		return nil, nil
	}
	elsewhere := &Backend{variant: other, families: inet.Families, ours: b.ours, tables: b.tables}
	var found []inet.Family
	for _, f := range inet.Families {
		if f == inet.IPv6 && !kernelHasIPv6() {
			continue
		}
		s, err := elsewhere.save(ctx, f)
		if err != nil {
			return nil, fmt.Errorf("look for rules of ours in iptables-%s: %w", other, err)
		}
		if anyOfOurs(s.view(b.ours)) {
			found = append(found, f)
		}
	}
	if len(found) == 0 {
		return nil, nil
	}
	return &Leftovers{Variant: other, Families: found, backend: elsewhere}, nil
}

// Remove deletes them. What others have in our chains stays, as ever.
func (l *Leftovers) Remove(ctx context.Context) error {
	var errs []error
	for _, f := range l.Families {
		if err := l.backend.remove(ctx, f); err != nil {
			errs = append(errs, fmt.Errorf("remove our %s rules from iptables-%s: %w", f, l.Variant, err))
		}
	}
	return errors.Join(errs...)
}

func (l *Leftovers) String() string {
	names := make([]string, len(l.Families))
	for i, f := range l.Families {
		names[i] = f.String()
	}
	return fmt.Sprintf("%s rules of ours in iptables-%s", strings.Join(names, " and "), l.Variant)
}

// anyOfOurs says whether a rule in the view is ours. A chain is not enough: kube-proxy's have the same names.
func anyOfOurs(v kernel.RulesView) bool {
	for _, tags := range v.Jumps {
		if len(tags) > 0 {
			return true
		}
	}
	for _, tags := range v.Chains {
		for _, tag := range tags {
			if tag != "" {
				return true
			}
		}
	}
	return false
}
