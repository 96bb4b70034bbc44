package live

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/ipset"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft"
)

// leftovers finds and removes kube-proxy's objects in ipset, nftables and both iptables variants. It opens each backend on demand, because
// only commands look for leftovers.
type leftovers struct{ chains []kernel.ChainID }

// FindLeftovers returns what kube-proxy left behind on this node. chains lists chains that may belong to the agent.
func FindLeftovers(ctx context.Context, chains []kernel.ChainID) (kernel.Leftovers, error) {
	return (&leftovers{chains}).find(ctx)
}

// FindLeftovers returns what kube-proxy left behind on this node.
func (k *Kernel) FindLeftovers(ctx context.Context) (kernel.Leftovers, error) {
	return k.leftovers.find(ctx)
}

func (l *leftovers) tables(v iptables.Variant) *iptables.Backend {
	return iptables.New(iptables.Config{Chains: l.chains, Variant: v, Families: inet.Families})
}

func (l *leftovers) find(ctx context.Context) (found kernel.Leftovers, err error) {
	used := map[string]string{} // for each ipset, a remaining rule that uses it
	for _, v := range []iptables.Variant{iptables.NFT, iptables.Legacy} {
		more, sets, err := l.tables(v).FindLeftovers(ctx)
		if err != nil {
			return kernel.Leftovers{}, err
		}
		found.Objects, found.Kept = append(found.Objects, more.Objects...), append(found.Kept, more.Kept...)
		maps.Copy(used, sets)
	}
	err = with(ipset.New, func(b *ipset.Backend) error {
		sets, _, err := b.Summaries(ctx, kernel.ProxySets)
		for _, name := range slices.Sorted(maps.Keys(sets)) {
			switch rule := used[name]; {
			case !kernel.SetOfKubeProxy(name):
			case rule != "":
				found.Kept = append(found.Kept, fmt.Sprintf("ipset %s stays; another program's rule uses it: %s", name, rule))
			default:
				found.Objects = append(found.Objects, kernel.Leftover{Place: kernel.OldSets, Name: name})
			}
		}
		return err
	})
	if err == nil {
		err = with(openNFT, func(b *nft.Backend) error {
			tables, err := b.FindLeftovers(ctx)
			found.Objects = append(found.Objects, tables...)
			return err
		})
	}
	if err != nil {
		return kernel.Leftovers{}, fmt.Errorf("find leftovers of kube-proxy: %w", err)
	}
	return found, nil
}

// Apply removes leftovers.
func (l *leftovers) Apply(ctx context.Context, ops []kernel.Op) []error {
	errs := make([]error, 0, len(ops))
	for from := 0; from < len(ops); {
		place, to := ops[from].Object.(kernel.Leftover).Place, from
		for to < len(ops) && ops[to].Object.(kernel.Leftover).Place == place {
			to++
		}
		errs = append(errs, l.remove(ctx, place, ops[from:to])...)
		from = to
	}
	return errs
}

func (l *leftovers) remove(ctx context.Context, place string, ops []kernel.Op) []error {
	switch place {
	case kernel.OldSets:
		sets := make([]kernel.Op, len(ops))
		for i, op := range ops {
			sets[i] = kernel.Op{Verb: kernel.Delete, Object: kernel.Set{Name: op.Object.(kernel.Leftover).Name}}
		}
		return each(ops, ipset.New, func(b *ipset.Backend, i int) error { return b.Apply(ctx, sets[i:i+1])[0] })
	case kernel.RulesNFTables:
		return each(ops, openNFT, func(b *nft.Backend, i int) error { return b.RemoveLeftover(ctx, ops[i].Object.(kernel.Leftover)) })
	}
	return l.tables(iptables.Variant(place)).RemoveLeftovers(ctx, ops)
}

func openNFT() (*nft.Backend, error) { return nft.New(inet.Families, nil) }

// with opens a backend for one call of use. It does nothing if the kernel does not support the backend.
func with[B interface{ Close() error }](open func() (B, error), use func(B) error) error {
	b, err := open()
	if errors.Is(err, kernel.ErrUnavailable) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(use(b), b.Close())
}

func each[B interface{ Close() error }](ops []kernel.Op, open func() (B, error), do func(B, int) error) []error {
	errs := make([]error, len(ops))
	err := with(open, func(b B) error {
		for i, op := range ops {
			if err := do(b, i); err != nil {
				errs[i] = fmt.Errorf("%s: %w", op, err)
			}
		}
		return nil
	})
	if err != nil {
		errs[0] = errors.Join(errs[0], err)
	}
	return errs
}
