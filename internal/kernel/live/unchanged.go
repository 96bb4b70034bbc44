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

// unchanged lets an auditor skip the parts that are in nftables if nobody has changed nftables since the auditor read them. Packets and timeouts
// also add and remove elements, which does not count as a change, but only clients' records, which an audit does not read.
type unchanged struct {
	conn *nlbatch.Conn
	seen *seen
	// now is the generation at the start of the current audit. It is unknown if it could not be read, and settled if nothing had changed for a
	// while.
	now            uint32
	known, settled bool
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

// settling is how long a list may miss elements after a change, at most: the kernel enlarges hash tables in the background.
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
	a.rules = &keptRules{rules: a.rules, kept: kept[map[inet.Family]kernel.RulesView]{in: u}}
	if cfg.Mode.RulesInNFTables() {
		a.members = keepMembers(u, a.members)
	}
	if cfg.Mode.NFTablesBalances() {
		servers := kept[map[kernel.ServerKey]kernel.ObservedServer]{in: u}
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
	generation, err := wire.Generation(ctx, u.conn)
	u.now, u.known = generation, err == nil
	u.settled = u.known && u.seen.settled(generation)
}

// mostSkipped limits how many audits in a row skip a part. It limits how long an idle agent fails to notice that an iptables program hangs.
const mostSkipped = 10

// kept is the last successful result of a function that reads nftables. It is confirmed if it cannot miss elements: nftables had not changed for a
// while when it was read, or it is the second result of the same generation.
type kept[T any] struct {
	in               *unchanged
	valid, confirmed bool
	at               uint32
	skipped          int
	value            T
}

func (k *kept[T]) get(read func() (T, error)) (T, error) {
	same := k.valid && k.in.known && k.at == k.in.now
	if same && k.confirmed && k.skipped < mostSkipped {
		k.skipped++
		return k.value, nil
	}
	// The generation is from before the read, so a change during the read makes the next audit read again.
	value, err := read()
	*k = kept[T]{in: k.in, valid: err == nil && k.in.known, confirmed: same || k.in.settled, at: k.in.now, value: value}
	return value, err
}

func keepMembers(u *unchanged, read members) members {
	type listed struct {
		sets    map[string]kernel.Set
		members map[string]map[kernel.Element]struct{}
	}
	k := kept[listed]{in: u}
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
	late := programs.has(func(p *patient) bool { return p.late != nil })
	if programs.has(func(p *patient) bool { return !p.troubleSince.IsZero() }) {
		r.kept.valid = false
	}
	var errs kernel.RulesError
	views, _ := r.kept.get(func() (views map[inet.Family]kernel.RulesView, err error) {
		views, errs = r.rules.Read(ctx)
		return views, errs.Err()
	})
	r.kept.valid = r.kept.valid && !late
	return views, errs
}

// has reports whether the programs of a family are in the given state. Without programs, none is.
func (b *byFamily) has(is func(*patient) bool) bool {
	if b == nil {
		return false
	}
	for _, p := range b.of {
		p.mu.Lock()
		found := is(p)
		p.mu.Unlock()
		if found {
			return true
		}
	}
	return false
}
