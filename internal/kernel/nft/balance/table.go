package balance

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Try asks the kernel to create the maps and chains for balancing, without committing them. This loads the necessary modules.
func Try(ctx context.Context, conn *wire.Conn, families []inet.Family) error {
	var reqs []nlbatch.Request
	null := map[inet.Family]netip.Addr{inet.IPv4: netip.IPv4Unspecified(), inet.IPv6: netip.IPv6Unspecified()}
	for _, f := range families {
		key := kernel.ServerKey{Addr: netip.AddrPortFrom(null[f], 1), Protocol: inet.TCP}
		reqs = slices.Concat(reqs, foundation(f), []nlbatch.Request{affinityMap(key)})
		none, one := picker{family: f}, picker{family: f, slots: 1}
		keep := affinity{key: key, timeout: 1, mask: 1, gone: []netip.AddrPort{key.Addr}, pick: one}
		for _, c := range append([]Chain{none.chain(), one.chain()}, keep.chains()...) {
			reqs = append(reqs, c.Requests()...)
		}
	}
	for _, err := range conn.Try(ctx, reqs) {
		if err != nil {
			return fmt.Errorf("balancing: %w", err)
		}
	}
	return nil
}

func ownChain(f inet.Family, name string) bool {
	for _, kind := range []string{"balance", "pick", "all-ports", "affinity", "record"} {
		if rest, ours := strings.CutPrefix(name, fmt.Sprintf("%s%d", kind, f)); ours && (rest == "" || rest[0] == '.' || rest[0] == '-') {
			return true
		}
	}
	return false
}

func ownMap(f inet.Family, name string) bool {
	return slices.Contains(sharedMapNames[f], name) || strings.HasPrefix(name, fmt.Sprintf("%s%d.", clients, f))
}

// DropUnused deletes the table if it contains no sets, rules or virtual servers. Maps and chains for balancing do not prevent this.
func DropUnused(ctx context.Context, conn *wire.Conn) {
	if unused, err := unused(ctx, conn); err == nil && unused {
		_ = conn.Drop(ctx)
	}
}

func unused(ctx context.Context, conn *wire.Conn) (bool, error) {
	t, err := conn.Table(ctx)
	if err != nil || !t.Exists || t.Used == 0 {
		return t.Exists, err
	}
	sets, err := conn.Sets(ctx)
	if err != nil {
		return false, err
	}
	chains, err := conn.Chains(ctx)
	if err != nil {
		return false, err
	}
	for _, f := range inet.Families {
		chains = slices.DeleteFunc(chains, func(name string) bool { return ownChain(f, name) })
		for _, name := range sharedMapNames[f][:2] {
			if _, exists := sets[name]; !exists {
				continue
			}
			n := 0
			if err := conn.Elements(ctx, wire.Set(name), func(wire.Element) error { n++; return nil }); err != nil || n > 0 {
				return false, err
			}
		}
		maps.DeleteFunc(sets, func(name string, _ wire.ListedSet) bool { return ownMap(f, name) })
	}
	return len(chains) == 0 && len(sets) == 0, nil
}

// Remove deletes the chains and maps of a family, which no rule uses anymore. Open connections keep their endpoints. What another program's rule
// uses stays.
func Remove(ctx context.Context, conn *wire.Conn, f inet.Family, chains []string) {
	var flushes, deletions, sets []nlbatch.Request
	for _, name := range chains {
		if ownChain(f, name) {
			flushes, deletions = append(flushes, wire.Chain(name).Flush()), append(deletions, wire.Chain(name).Delete())
		}
	}
	existing, err := conn.Sets(ctx)
	if err != nil {
		return
	}
	for name := range existing {
		if ownMap(f, name) {
			sets = append(sets, wire.Set(name).Delete())
		}
	}
	for _, all := range [][]nlbatch.Request{flushes, sets, deletions} {
		for reqs := range slices.Chunk(all, wire.MaxElements) {
			if conn.Commit(ctx, reqs) == nil {
				continue
			}
			for _, r := range reqs {
				_ = conn.Commit(ctx, []nlbatch.Request{r})
			}
		}
	}
}
