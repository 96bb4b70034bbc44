package iptables

import (
	"context"
	"errors"
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// FindOldRules looks for kube-ipvs rules in the other variant. It does not load tables, because a table that is not loaded has no rules.
func (b *Backend) FindOldRules(ctx context.Context) ([]kernel.OldRules, error) {
	other := b.unused()
	if !installed(other.variant) {
		return nil, nil
	}
	var found []kernel.OldRules
	var errs []error
	for _, f := range inet.Families {
		if f == inet.IPv6 && !KernelHasIPv6() {
			continue
		}
		s, err := other.save(ctx, f, other.tables)
		if err != nil {
			errs = append(errs, fmt.Errorf("look for old rules in iptables-%s: %w", other.variant, err))
		} else if anyOfOurs(s.view(b.ours)) {
			found = append(found, kernel.OldRules{Variant: string(other.variant), Family: f})
		}
	}
	return found, errors.Join(errs...)
}

// unused returns the backend for the other variant, in which any kube-ipvs rules are old.
func (b *Backend) unused() *Backend {
	return &Backend{variant: b.variant.Other(), families: inet.Families, ours: b.ours, tables: b.tables, runner: b.runner}
}

func (b *Backend) removeOldRules(ctx context.Context, old kernel.OldRules) error {
	other := b.unused()
	if Variant(old.Variant) != other.variant {
		return fmt.Errorf("iptables-%s is in use: %w", b.variant, kernel.ErrUnavailable)
	}
	return other.remove(ctx, old.Family)
}

// A chain alone proves nothing, because kube-proxy's chains have the same names.
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
