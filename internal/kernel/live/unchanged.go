package live

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// unchanged lets an auditor skip the parts that are in nftables if no program has changed nftables since the auditor read them. Packets and timeouts
// also add and remove elements without a new generation, but only in clients' records, which an audit does not read.
type unchanged struct {
	conn *nlbatch.Conn
	seen *seen
	// now is the generation at the start of the current audit, or 0 if it could not be read. It is settled if nothing had changed for a while.
	now     uint32
	settled bool
}

// seen is the generation that the last quick check saw, and the time of the first check that saw it.
type seen struct {
	mu         sync.Mutex
	generation uint32
	since      time.Time
}

func (s *seen) note(generation uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if generation != s.generation {
		s.generation, s.since = generation, time.Now()
	}
}

// settling is the longest time after a change during which a list may miss elements: the kernel enlarges hash tables in the background.
const settling = 2 * time.Second

func (s *seen) settled(generation uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return generation == s.generation && time.Since(s.since) >= settling
}

// keepUnchanged adds the parts of a that are in nftables to the result, which is nil if there are none.
func keepUnchanged(a *auditor, cfg Config, seen *seen) (*unchanged, error) {
	if !cfg.Mode.RulesInNFTables() && cfg.Variant != iptables.NFT {
		return nil, nil
	}
	conn, err := nlbatch.Dial(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	u := &unchanged{conn: conn, seen: seen}
	a.rules = &keptRules{rules: a.rules, kept: kept[map[inet.Family]kernel.RulesView]{in: u, most: keepRules}}
	if cfg.Mode.RulesInNFTables() {
		a.members = keepMembers(u, a.members)
	}
	if cfg.Mode.NFTablesBalances() {
		servers := kept[map[kernel.ServerKey]kernel.ObservedServer]{in: u, most: keepLists}
		read := a.servers
		a.servers = func(ctx context.Context) (map[kernel.ServerKey]kernel.ObservedServer, error) {
			return servers.get(func() (map[kernel.ServerKey]kernel.ObservedServer, error) { return read(ctx) })
		}
	}
	return u, nil
}

func (u *unchanged) close() error {
	if u == nil {
		return nil
	}
	return u.conn.Close()
}

// begin begins an audit.
func (u *unchanged) begin(ctx context.Context) {
	if u == nil {
		return
	}
	u.now, u.settled = 0, false
	if generation, err := wire.Generation(ctx, u.conn); err == nil {
		u.now, u.settled = generation, u.seen.settled(generation)
	}
}

// A part is read again after this time, even if it is unchanged. keepRules also limits how long a hanging iptables program goes
// unnoticed. It is shorter than the longest interval of audits, five minutes, so that each of those audits reads the rules.
const (
	keepLists = time.Hour
	keepRules = 4 * time.Minute
)

// kept is the last successful result of a function that reads nftables. It is confirmed if it cannot miss elements: nftables had not changed for a
// while when it was read, or it is the second result of the same generation.
type kept[T any] struct {
	in        *unchanged
	most      time.Duration // see keepLists
	value     T
	at        uint32 // the generation of value, or 0 if there is none
	read      time.Time
	confirmed bool
}

func (k *kept[T]) get(read func() (T, error)) (T, error) {
	same := k.at != 0 && k.at == k.in.now
	if same && k.confirmed && time.Since(k.read) < k.most {
		return k.value, nil
	}
	// The time and the generation are from before the read, so a change during the read makes the next audit read again.
	now := time.Now()
	value, err := read()
	if k.value, k.at, k.read, k.confirmed = value, k.in.now, now, same || k.in.settled; err != nil {
		k.at = 0
	}
	return value, err
}

func keepMembers(u *unchanged, read members) members {
	type listed struct {
		sets    map[string]kernel.Set
		members map[string]map[kernel.Element]struct{}
	}
	k := kept[listed]{in: u, most: keepLists}
	return func(ctx context.Context, prefix string) (map[string]kernel.Set, map[string]map[kernel.Element]struct{}, error) {
		l, err := k.get(func() (l listed, err error) {
			l.sets, l.members, err = read(ctx, prefix)
			return l, err
		})
		return l.sets, l.members, err
	}
}

type keptRules struct {
	rules
	kept kept[map[inet.Family]kernel.RulesView]
}

// Read reads again while a program hangs or fails, because only its success shows that it works again (I16). It does not keep the result of a
// read that ended late, because that may be older than the generation.
func (r *keptRules) Read(ctx context.Context) (map[inet.Family]kernel.RulesView, kernel.RulesError) {
	programs, _ := r.rules.(*byFamily)
	troubled, late := programs.history()
	if troubled {
		r.kept.at = 0
	}
	var errs kernel.RulesError
	views, _ := r.kept.get(func() (views map[inet.Family]kernel.RulesView, err error) {
		views, errs = r.rules.Read(ctx)
		return views, errs.Err()
	})
	if _, after := programs.history(); after != late {
		r.kept.at = 0
	}
	return views, errs
}

// history reports whether a program is in trouble, and how many reads have returned a late result.
func (b *byFamily) history() (troubled bool, late int) {
	if b == nil {
		return false, 0
	}
	for _, p := range b.of {
		p.mu.Lock()
		troubled, late = troubled || !p.troubleSince.IsZero(), late+p.usedLate
		p.mu.Unlock()
	}
	return troubled, late
}
