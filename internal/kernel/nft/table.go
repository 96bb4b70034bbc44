package nft

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Exists reports whether the table exists.
func (b *Backend) Exists(ctx context.Context) (bool, error) {
	t, err := b.table(ctx)
	if err != nil {
		return false, fmt.Errorf("read tables: %w", err)
	}
	return t.exists, nil
}

// table is what the kernel reports about the table: its flags, and the number of objects in it.
type table struct {
	exists      bool
	used, flags uint32
}

func (b *Backend) table(ctx context.Context) (t table, err error) {
	payloads, err := b.dump(ctx, unix.NFT_MSG_GETTABLE, nil)
	for _, p := range payloads {
		name, found := "", table{exists: true}
		err = errors.Join(err, eachAttr(p, func(typ uint16, v []byte) (err error) {
			switch typ {
			case unix.NFTA_TABLE_NAME:
				name = nlbatch.String(v)
			case unix.NFTA_TABLE_USE:
				found.used, err = nlbatch.BigUint32(v)
			case unix.NFTA_TABLE_FLAGS:
				found.flags, err = nlbatch.BigUint32(v)
			}
			return err
		}))
		if name == Table {
			t = found
		}
	}
	return t, err
}

// Drop deletes the table with everything in it, in one step.
func (b *Backend) Drop(ctx context.Context) error {
	err := b.commit(ctx, []nlbatch.Request{request(unix.NFT_MSG_DELTABLE, 0, nlbatch.AppendString(nil, unix.NFTA_TABLE_NAME, Table))})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete table inet %s: %w", Table, err)
	}
	return nil
}

// Try asks the kernel to create the sets and rules, without committing them. This loads the necessary modules. The error names the first
// set or rule that the kernel refused.
func (b *Backend) Try(ctx context.Context, sets []kernel.Set, rules []kernel.Ruleset) error {
	existing, err := b.sets(ctx)
	if err != nil {
		return fmt.Errorf("read sets: %w", err)
	}
	reqs, names := []nlbatch.Request{newTable()}, []string{"table inet " + Table}
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
	for i, err := range b.conn.Transaction(ctx, begin, reqs) {
		if err != nil {
			return fmt.Errorf("%s: %w", names[i], err)
		}
	}
	return nil
}
