package nft

import (
	"context"
	"fmt"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/balance"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Backend reads and writes the table in the network namespace of the thread that opened it. It is not safe for concurrent use.
type Backend struct {
	conn     *wire.Conn
	families []inet.Family
	// chains are the chains, apart from base chains, that Read and Summarizer read.
	chains []kernel.ChainID
	// balances is true if a Balancer also uses the table.
	balances bool
}

// AttributeTo notes the generations that the backend makes.
func (b *Backend) AttributeTo(w *wire.Writes) { b.conn.AttributeTo(w) }

// WithBalancing tells the backend to keep the maps and chains of a Balancer when it writes rules. Otherwise, it would delete them.
func (b *Backend) WithBalancing() { b.balances = true }

// New opens a socket. Read and Summarizer read only the given chains of rules. If the kernel has no nftables, New returns
// kernel.ErrUnavailable.
func New(families []inet.Family, chains []kernel.ChainID) (*Backend, error) {
	conn, err := wire.Dial()
	if err != nil {
		return nil, err
	}
	return &Backend{conn: conn, families: families, chains: chains}, nil
}

// Close closes the socket. The table stays in the kernel.
func (b *Backend) Close() error { return b.conn.Close() }

// Stats counts the requests since New.
func (b *Backend) Stats() nlbatch.Stats { return b.conn.Stats() }

// Table is the name of the agent's table, in the family inet.
const Table = wire.TableName

// Exists reports whether the table exists.
func (b *Backend) Exists(ctx context.Context) (bool, error) {
	t, err := b.conn.Table(ctx)
	if err != nil {
		return false, fmt.Errorf("read tables: %w", err)
	}
	return t.Exists, nil
}

// Balances reports whether the table contains chains for balancing.
func (b *Backend) Balances(ctx context.Context) (bool, error) {
	chains, err := b.conn.Chains(ctx)
	if err != nil {
		return false, fmt.Errorf("read chains: %w", err)
	}
	return slices.ContainsFunc(inet.Families, func(f inet.Family) bool { return slices.Contains(chains, balance.Entrance(f)) }), nil
}

// TryBalancing asks the kernel to create the maps and chains for balancing, without committing them.
func (b *Backend) TryBalancing(ctx context.Context) error {
	return balance.Try(ctx, b.conn, b.families)
}

// Drop deletes the table with everything in it, in one step.
func (b *Backend) Drop(ctx context.Context) error { return b.conn.Drop(ctx) }

// Try asks the kernel to create the sets and rules, without committing them. This loads the necessary modules. The error names the first
// set or rule that the kernel refused.
func (b *Backend) Try(ctx context.Context, sets []kernel.Set, rules []kernel.Ruleset) error {
	existing, err := b.conn.Sets(ctx)
	if err != nil {
		return fmt.Errorf("read sets: %w", err)
	}
	reqs, names := []nlbatch.Request{wire.NewTable()}, []string{"table inet " + Table}
	for _, s := range sets {
		if _, exists := existing[s.Name]; exists {
			continue
		}
		req, err := newSet(s)
		if err != nil {
			return fmt.Errorf("set %s: %w", s.Name, err)
		}
		reqs, names = append(reqs, req), append(names, "set "+s.Name)
	}
	for _, r := range rules {
		more, err := ruleset(r, nil)
		if err != nil {
			return err
		}
		for range more {
			names = append(names, fmt.Sprintf("the %s rules", r.Family))
		}
		reqs = append(reqs, more...)
	}
	for i, err := range b.conn.Try(ctx, reqs) {
		if err != nil {
			return fmt.Errorf("%s: %w", names[i], err)
		}
	}
	return nil
}
