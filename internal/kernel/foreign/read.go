package foreign

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// maxElements is the maximum number of elements to read from a set. Larger sets are not evaluated. maxTotal limits the total number of
// rules and elements.
const (
	maxElements = 1 << 16
	maxTotal    = 1 << 19
)

var families = map[string]byte{"inet": unix.NFPROTO_INET, "ip": unix.NFPROTO_IPV4, "ip6": unix.NFPROTO_IPV6}

func familyOf(number byte) string {
	for name, n := range families {
		if n == number {
			return name
		}
	}
	return ""
}

// Read returns the rules and sets of the tables that contain these base chains.
func Read(ctx context.Context, chains []kernel.BaseChain) (kernel.NFTables, error) {
	all := kernel.NFTables{Rules: map[kernel.NFTName][]kernel.NFTRule{}, Sets: map[kernel.NFTName]kernel.NFTSet{}}
	if len(chains) == 0 {
		return all, nil
	}
	conn, err := nlbatch.Dial(unix.NETLINK_NETFILTER)
	if err != nil {
		return all, fmt.Errorf("read nftables: %w", err)
	}
	defer conn.Close()
	r := reader{conn: conn, all: all}
	var tables []kernel.NFTName
	for _, c := range chains {
		if t := (kernel.NFTName{Family: c.Family, Table: c.Table}); families[c.Family] != 0 && !slices.Contains(tables, t) {
			tables = append(tables, t)
		}
	}
	for _, t := range tables {
		if err := r.table(ctx, t); err != nil && !errors.Is(err, unix.ENOENT) { // it may have been deleted in the meantime
			return all, fmt.Errorf("read table %s %s of nftables: %w", t.Family, t.Table, err)
		}
	}
	return all, nil
}

type reader struct {
	conn  *nlbatch.Conn
	all   kernel.NFTables
	total int
}

func (r *reader) table(ctx context.Context, t kernel.NFTName) error {
	payloads, err := r.conn.Dump(ctx, wire.TableRequest(unix.NFT_MSG_GETRULE, families[t.Family], t.Table))
	if err != nil {
		return err
	}
	for _, p := range payloads {
		at, rule, err := decodeRule(p)
		if err != nil {
			return err
		}
		if at.Table == t.Table {
			r.all.Rules[at] = append(r.all.Rules[at], rule)
		}
	}
	if r.total += len(payloads); r.total > maxTotal {
		return fmt.Errorf("more than %d rules and elements", maxTotal)
	}
	payloads, err = r.conn.Dump(ctx, wire.TableRequest(unix.NFT_MSG_GETSET, families[t.Family], t.Table))
	if err != nil {
		return err
	}
	for _, p := range payloads {
		name, set, err := decodeSet(p)
		if err != nil {
			return err
		}
		if name.Table != t.Table {
			continue
		}
		if err := r.elements(ctx, name, &set); err != nil {
			return fmt.Errorf("set %s: %w", name.Name, err)
		}
		r.all.Sets[name] = set.NFTSet
	}
	return nil
}

var errTooMany = errors.New("it has too many elements")

func (r *reader) elements(ctx context.Context, name kernel.NFTName, set *set) error {
	request := wire.TableRequest(unix.NFT_MSG_GETSETELEM, families[name.Family], name.Table)
	request.Payload = nlbatch.AppendString(request.Payload, unix.NFTA_SET_ELEM_LIST_SET, name.Name)
	err := r.conn.Walk(ctx, request, func(p []byte) error {
		if err := set.decodeElements(p); err != nil {
			return err
		}
		if len(set.raw) > min(maxElements, maxTotal-r.total) {
			return errTooMany
		}
		return nil
	})
	r.total += len(set.raw)
	switch {
	case errors.Is(err, errTooMany):
		set.raw, set.Unread = nil, "it has too many elements"
		return nil
	case errors.Is(err, nlbatch.ErrDumpInterrupted):
		set.Unread = "it changed while the agent was reading it"
		return nil
	case err != nil:
		return err
	}
	set.close()
	return nil
}
