package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Config configures the backend.
type Config struct {
	Chains []kernel.ChainID
	// Variant and Families are the results of Detect.
	Variant  Variant
	Families []inet.Family
}

// Backend reads and writes the rules of the calling thread's network namespace. At most one call per family may run at a time.
type Backend struct {
	variant  Variant
	families []inet.Family
	ours     map[kernel.ChainID]bool
	tables   map[string]bool
	runner   *runner
}

// New returns a backend without starting a process.
func New(cfg Config) *Backend {
	b := &Backend{
		variant:  cfg.Variant,
		families: slices.Clone(cfg.Families),
		ours:     map[kernel.ChainID]bool{},
		tables:   map[string]bool{},
		runner:   &runner{},
	}
	for _, id := range cfg.Chains {
		b.ours[id], b.tables[id.Table] = true, true
	}
	return b
}

// Processes counts the processes started since New, except deletions through go-iptables.
func (b *Backend) Processes() uint64 { return b.runner.started.Load() }

// Read returns the owned rules of a family. Chains that do not exist are absent from the view.
func (b *Backend) Read(ctx context.Context, f inet.Family) (kernel.RulesView, error) {
	s, err := b.save(ctx, f, b.tables)
	if err != nil {
		return kernel.RulesView{}, err
	}
	return s.view(b.ours), nil
}

func (b *Backend) save(ctx context.Context, f inet.Family, tables map[string]bool) (saved, error) {
	out, err := b.runner.save(ctx, b.variant, f)
	if err != nil {
		return saved{}, fmt.Errorf("read %s rules: %w", f, explainProcess(err))
	}
	s, err := parseSave(out.stdout, tables)
	if err != nil {
		return saved{}, fmt.Errorf("read %s rules: %w", f, err)
	}
	return s, nil
}

// Apply executes the operations in order. Ensure writes a ruleset, and Delete removes all kube-ipvs rules of a family.
func (b *Backend) Apply(ctx context.Context, ops []kernel.Op) []error {
	errs := make([]error, len(ops))
	for i, op := range ops {
		if err := b.apply(ctx, op); err != nil {
			errs[i] = fmt.Errorf("%s: %w", op, err)
		}
	}
	return errs
}

func (b *Backend) apply(ctx context.Context, op kernel.Op) error {
	if old, ok := op.Object.(kernel.OldRules); ok && op.Verb == kernel.Delete {
		return b.removeOldRules(ctx, old)
	}
	r, ok := op.Object.(kernel.Ruleset)
	if !ok {
		return errors.ErrUnsupported
	}
	if !slices.Contains(b.families, r.Family) {
		return fmt.Errorf("iptables for %s: %w", r.Family, kernel.ErrUnavailable)
	}
	switch op.Verb {
	case kernel.Ensure:
		return b.ensure(ctx, r)
	case kernel.Delete:
		return b.remove(ctx, r.Family)
	}
	return errors.ErrUnsupported
}

// ensure reads before it writes, because iptables-restore would insert an existing jump a second time.
func (b *Backend) ensure(ctx context.Context, r kernel.Ruleset) error {
	s, err := b.save(ctx, r.Family, b.tables)
	if err != nil {
		return err
	}
	missing, stale := s.jumps(b.ours, r.Jumps)
	text := render(r, missing, stale)
	_, err = b.runner.run(ctx, text, b.variant.command(r.Family, "-restore"), "-w", strconv.Itoa(lockWait), "--noflush")
	return explainRestore(err, text)
}
