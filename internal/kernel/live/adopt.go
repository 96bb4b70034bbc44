package live

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/balance"
)

// This file copies virtual servers from one data plane to the other. The rules decide which of them receives new connections. An agent writes rules
// before virtual servers, so without the copies, nothing would answer in between.

type readAll func(context.Context) (map[kernel.ServerKey]kernel.ObservedServer, error)

// adopter copies virtual servers from the other data plane to this one. A Kernel whose rules are in iptables needs no adopter: while it writes rules and
// virtual servers, the nftables table stays.
type adopter struct {
	*reader
	apply func(context.Context, []kernel.Op) []error
	cfg   Config
	// other reads the virtual servers of the other data plane if it may be the one that balances now.
	other   readAll
	created map[kernel.ServerKey]struct{}
	// failures counts the attempts to copy in which the kernel refused an operation.
	failures int
}

func newAdopter(k *Kernel, cfg Config) *adopter {
	a := &adopter{reader: &k.reader, apply: k.Apply, cfg: cfg, created: map[kernel.ServerKey]struct{}{}}
	switch cfg.Mode {
	case kernel.IPVSWithNFTables:
		a.other = func(ctx context.Context) (map[kernel.ServerKey]kernel.ObservedServer, error) {
			if balances, err := k.nft.Balances(ctx); err != nil || !balances {
				return nil, err
			}
			return ReadServers(ctx, kernel.NFTablesOnly)
		}
	case kernel.NFTablesOnly:
		a.other = func(ctx context.Context) (map[kernel.ServerKey]kernel.ObservedServer, error) {
			if !IPVSLoaded() {
				return nil, nil
			}
			return ReadServers(ctx, kernel.IPVSWithNFTables)
		}
	default:
		return nil
	}
	return a
}

// IPVSLoaded reports whether IPVS is in the kernel now. It does not load the module.
func IPVSLoaded() bool {
	_, err := os.Stat("/proc/thread-self/net/ip_vs")
	return err == nil
}

// lastResort is the scheduler of a copy if the kernel lacks the scheduler of the original. Every kernel with IPVS has it.
const lastResort = "rr"

// PrepareMove copies the virtual servers from nftables to IPVS while another Kernel still changes nftables; AdoptRecords later copies what has
// changed. It counts the recorded clients with affinity, which IPVS will not know. If a virtual server of another program has the address and port of
// one of the agent's, PrepareMove fails. After an error, it removes the copies. Those that it cannot remove stay in copies, for the next attempt.
func (k *Kernel) PrepareMove(ctx context.Context, copies map[kernel.ServerKey]struct{}) (clients int, err error) {
	k.adopter.created = copies
	refused, err := k.adopter.adopt(ctx, false)
	if err = errors.Join(refused, err); err == nil {
		clients, err = k.adopter.clients(ctx)
	}
	if err == nil {
		return clients, nil
	}
	return 0, errors.Join(err, k.adopter.undo(context.WithoutCancel(ctx)))
}

func (a *adopter) undo(ctx context.Context) error {
	return a.remove(ctx, slices.Collect(maps.Keys(a.created)))
}

// remove removes copies. It forgets a copy only once it is gone.
func (a *adopter) remove(ctx context.Context, keys []kernel.ServerKey) error {
	slices.SortFunc(keys, kernel.ServerKey.Compare)
	var ops []kernel.Op
	for _, key := range keys {
		ops = append(ops, kernel.Op{Verb: kernel.Delete, Object: kernel.Server{Key: key}})
	}
	errs := a.apply(ctx, ops)
	for i, key := range keys {
		if errs[i] == nil {
			delete(a.created, key)
		}
	}
	return errors.Join(errs...)
}

// attempts is how often refused copies make an agent wait before it writes rules. After that, the rules change without them: the next sync
// creates what is missing, and what the kernel still refuses is a Problem of its Service alone.
const attempts = 3

// adoptForSync copies the agent's virtual servers before a sync.
func (a *adopter) adoptForSync(ctx context.Context) error {
	refused, err := a.adopt(ctx, true)
	if err != nil || refused == nil {
		return err
	}
	if a.failures++; a.failures < attempts {
		return refused
	}
	return nil
}

func (a *adopter) clients(ctx context.Context) (int, error) {
	b, err := balance.New(a.cfg.Families)
	if err != nil {
		return 0, err
	}
	n, err := b.Records(ctx)
	return n, errors.Join(err, b.Close())
}

// adopt copies the agent's virtual servers. In IPVS, it also gives existing ones the destinations of the originals. If existing is false, existing
// ones that adopt has not created belong to other programs. Otherwise, they are the agent's. The error refused has the copies that the kernel
// refused; the others have been made.
func (a *adopter) adopt(ctx context.Context, existing bool) (refused, err error) {
	wanted, err := a.owned(ctx)
	if err != nil || wanted == nil {
		return nil, err
	}
	have, err := a.balancer.Read(ctx)
	if err != nil {
		return nil, err
	}
	var creations, updates []kernel.Op
	var outdated []kernel.ServerKey
	for key := range a.created {
		if _, stays := wanted[key]; !stays { // its Service is gone, and so is the owner record
			outdated = append(outdated, key)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(wanted), kernel.ServerKey.Compare) {
		_, exists := have[key]
		_, copied := a.created[key]
		switch {
		case !exists:
			creations = append(creations, kernel.Op{Verb: kernel.Create, Object: wanted[key].Server})
		case !copied && !existing:
			return nil, fmt.Errorf("another program's virtual server is in IPVS: %s", key)
		case a.cfg.Mode.NFTablesBalances():
			continue // it is newer than its copy in IPVS
		}
		updates = append(updates, destinationsOf(wanted[key], have[key])...)
	}
	removed := a.remove(ctx, outdated)
	refused = a.create(ctx, creations)
	return errors.Join(append(a.apply(ctx, updates), removed, refused)...), nil
}

// owned reads the virtual servers in the other data plane that have an owner record, or returns nil if it does not balance. It omits damaged ones,
// because the next sync writes them anyway.
func (a *adopter) owned(ctx context.Context) (map[kernel.ServerKey]kernel.ObservedServer, error) {
	all, err := a.other(ctx)
	if err != nil || all == nil {
		return nil, err
	}
	entries := map[kernel.Member]kernel.ServerKey{}
	for key, s := range all {
		for _, r := range a.cfg.Records {
			if inet.FamilyOf(r.Seal.Element.Addr) == key.Family() && s.Scheduler != balance.BrokenScheduler {
				entries[kernel.Member{Set: r.Ledger, Element: kernel.Element{Addr: key.Addr.Addr(), Protocol: key.Protocol, Port: key.Addr.Port()}}] = key
			}
		}
	}
	if len(entries) == 0 {
		return map[kernel.ServerKey]kernel.ObservedServer{}, nil
	}
	recorded, err := a.sets.LookupMembers(ctx, slices.Collect(maps.Keys(entries)))
	owned := map[kernel.ServerKey]kernel.ObservedServer{}
	for entry := range recorded {
		owned[entries[entry]] = all[entries[entry]]
	}
	return owned, err
}

// create creates virtual servers. IPVS may lack a scheduler that nftables only records.
func (a *adopter) create(ctx context.Context, ops []kernel.Op) error {
	var errs []error
	var again []kernel.Op
	for i, err := range a.apply(ctx, ops) {
		s := ops[i].Object.(kernel.Server)
		switch {
		case err == nil:
			a.created[s.Key] = struct{}{}
		case errors.As(err, &kernel.NoSchedulerError{}) && s.Scheduler != lastResort:
			s.Scheduler, s.Flags = lastResort, s.Flags&kernel.FlagPersistent
			again = append(again, kernel.Op{Verb: kernel.Create, Object: s})
		default:
			errs = append(errs, err)
		}
	}
	if len(again) > 0 {
		errs = append(errs, a.create(ctx, again))
	}
	return errors.Join(errs...)
}

// destinationsOf lists the operations after which only the wanted destinations take connections.
func destinationsOf(wanted, have kernel.ObservedServer) (ops []kernel.Op) {
	add := func(verb kernel.Verb, d kernel.Destination) {
		ops = append(ops, kernel.Op{Verb: verb, Object: kernel.ServerDestination{Server: wanted.Key, Destination: d}})
	}
	for _, d := range wanted.Destinations {
		if old, exists := have.Destination(d.Addr); !exists {
			add(kernel.Create, d.Destination)
		} else if old.Weight != d.Weight {
			add(kernel.Update, d.Destination)
		}
	}
	for _, d := range have.Destinations {
		if _, stays := wanted.Destination(d.Addr); !stays && d.Weight > 0 && d.Forwarding == kernel.ForwardMasq {
			d.Weight = 0 // the next sync drains it
			add(kernel.Update, d.Destination)
		}
	}
	return ops
}
