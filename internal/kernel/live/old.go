package live

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/ipset"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft"
)

// Records are the sets of a family that list the agent's virtual servers and addresses. They are complete once they contain the seal.
type Records struct {
	Ledger, Addresses string
	Seal              kernel.Member
}

// old is the rule layer that the agent does not use now, but that an earlier run may have used. Its programs run in a separate thread,
// because a hung program may run for a long time.
type old struct {
	cfg    Config
	thread thread
	// nft is nil if the node uses nftables or does not support it. ipset is nil if the node uses ipset or does not support it.
	nft   *nft.Backend
	ipset *ipset.Backend
	// tables contains the iptables backends by variant. Each backend looks for old rules in the other variant.
	tables map[iptables.Variant]*iptables.Backend
	// sets and members are the old rule layer's records, read when the kernel was opened.
	sets    map[string]kernel.Set
	members map[string]map[kernel.Element]struct{}
}

func openOld(ctx context.Context, cfg Config) (*old, error) {
	o := &old{cfg: cfg, tables: map[iptables.Variant]*iptables.Backend{}}
	variants := []iptables.Variant{cfg.Variant}
	if cfg.Mode.RulesInNFTables() {
		variants = []iptables.Variant{iptables.NFT, iptables.Legacy}
	}
	for _, v := range variants {
		o.tables[v] = iptables.New(iptables.Config{Chains: cfg.Chains, Variant: v, Families: cfg.Families})
	}
	var err error
	if o.thread, err = newThread(); err != nil {
		return nil, err
	}
	if !cfg.Mode.RulesInNFTables() {
		if o.nft, err = nft.New(cfg.Families, nil); err == nil {
			o.sets, o.members, err = o.nft.ReadSets(ctx, cfg.SetPrefix)
		}
	} else {
		if o.ipset, err = ipset.New(); err == nil {
			o.sets, o.members, err = o.ipset.Read(ctx, cfg.SetPrefix)
		}
	}
	if errors.Is(err, kernel.ErrUnavailable) {
		err = nil // the kernel does not support it, so nothing is left there
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("find leftovers of an earlier run: %w", err), o.close())
	}
	return o, nil
}

func (o *old) close() error {
	close(o.thread)
	var errs []error
	if o.nft != nil {
		errs = append(errs, o.nft.Close())
	}
	if o.ipset != nil {
		errs = append(errs, o.ipset.Close())
	}
	return errors.Join(errs...)
}

// inherit adds the records of the other rule layer to a state. If the current records are complete, the old records are outdated and
// ignored.
func (o *old) inherit(s *kernel.State) {
	for _, r := range o.cfg.Records {
		if s.HasMember(r.Seal) {
			continue
		}
		for _, name := range []string{r.Ledger, r.Addresses} {
			if len(o.members[name]) == 0 {
				continue
			}
			if s.Members[name] == nil {
				s.Members[name] = map[kernel.Element]struct{}{}
			}
			maps.Copy(s.Members[name], o.members[name])
		}
	}
}

func (o *old) hasRecords() bool {
	return slices.ContainsFunc(o.cfg.Records, func(r Records) bool {
		_, ledger := o.sets[r.Ledger]
		_, addresses := o.sets[r.Addresses]
		return ledger || addresses
	})
}

// records lists the operations that write the records of the other rule layer to the current rule layer. The seal comes last, so that an
// agent that is killed halfway continues when it restarts.
func (o *old) records(have *kernel.State) []kernel.Op {
	var sets, members, seals []kernel.Op
	for _, r := range o.cfg.Records {
		if have.HasMember(r.Seal) {
			continue
		}
		for _, name := range []string{r.Ledger, r.Addresses} {
			set, exists := o.sets[name]
			if _, present := have.Sets[name]; exists && !present {
				sets = append(sets, kernel.Op{Verb: kernel.Create, Object: set})
			}
			for e := range o.members[name] {
				op := kernel.Op{Verb: kernel.Create, Object: kernel.Member{Set: name, Element: e}}
				if op.Object == kernel.Object(r.Seal) {
					seals = append(seals, op)
				} else {
					members = append(members, op)
				}
			}
		}
	}
	return slices.Concat(sets, members, seals)
}

// find returns rules before sets, because rules use sets.
func (o *old) find(ctx context.Context) ([]kernel.OldRules, error) {
	var found []kernel.OldRules
	var errs []error
	for _, b := range o.tables {
		rules, err := b.FindOldRules(ctx)
		found, errs = append(found, rules...), append(errs, err)
	}
	if o.nft != nil {
		exists, err := o.nft.Exists(ctx)
		if errs = append(errs, err); exists {
			found = append(found, kernel.OldRules{Variant: kernel.RulesNFTables})
		}
	}
	if o.ipset != nil {
		sets, _, err := o.ipset.Read(ctx, o.cfg.SetPrefix)
		if errs = append(errs, err); len(sets) > 0 {
			found = append(found, kernel.OldRules{Variant: kernel.OldSets})
		}
	}
	return found, errors.Join(errs...)
}

func (o *old) processes() (n uint64) {
	for _, b := range o.tables {
		n += b.Processes()
	}
	return n
}

// oldLimit is the time limit for a search or a removal. A removal starts a program for each rule, and each program may wait for the xtables
// lock.
const oldLimit = 10 * time.Minute

// Apply removes old rules and sets.
func (o *old) Apply(ctx context.Context, ops []kernel.Op) []error {
	ctx, cancel := context.WithTimeout(ctx, oldLimit)
	defer cancel()
	errs := make([]error, len(ops))
	err := o.thread.doFor(ctx, func() {
		for i, op := range ops {
			if err := o.remove(ctx, op); err != nil {
				errs[i] = fmt.Errorf("%s: %w", op, err)
			}
		}
	})
	if err == nil {
		return errs
	}
	unknown := make([]error, len(ops))
	for i, op := range ops {
		unknown[i] = fmt.Errorf("%s: %w", op, err)
	}
	return unknown
}

func (o *old) remove(ctx context.Context, op kernel.Op) error {
	switch rules := op.Object.(kernel.OldRules); rules.Variant {
	case kernel.RulesNFTables:
		return o.nft.Drop(ctx)
	case kernel.OldSets:
		return o.removeSets(ctx)
	default:
		b := o.tables[iptables.Variant(rules.Variant).Other()]
		if b == nil {
			return fmt.Errorf("iptables-%s is in use: %w", rules.Variant, kernel.ErrUnavailable)
		}
		return errors.Join(b.Apply(ctx, []kernel.Op{op})...)
	}
}

// removeSets deletes the records first, so that a later run does not inherit outdated records. If rules still use a set, it empties the set
// instead. The set of virtual addresses comes early, because the rules reject packets to virtual addresses that are in no other set.
func (o *old) removeSets(ctx context.Context) error {
	sets, members, err := o.ipset.Read(ctx, o.cfg.SetPrefix)
	if err != nil {
		return err
	}
	var first []string
	for _, r := range o.cfg.Records {
		first = append(first, r.Ledger, r.Addresses)
	}
	names := slices.SortedFunc(maps.Keys(sets), func(a, b string) int { return position(first, a) - position(first, b) })
	var used []string
	var errs []error
	for _, name := range names {
		err := errors.Join(o.ipset.Apply(ctx, []kernel.Op{{Verb: kernel.Delete, Object: sets[name]}})...)
		if errors.Is(err, unix.EBUSY) {
			used = append(used, name)
			var ops []kernel.Op
			for e := range members[name] {
				ops = append(ops, kernel.Op{Verb: kernel.Delete, Object: kernel.Member{Set: name, Element: e}})
			}
			err = errors.Join(o.ipset.Apply(ctx, ops)...)
		}
		errs = append(errs, err)
	}
	if len(used) > 0 {
		errs = append(errs, fmt.Errorf("iptables rules still use %s: either the programs that could delete these rules are not installed, or another program "+
			"owns the rules. The sets are empty now, so the rules match nothing. Run `kube-ipvs cleanup` from an image with iptables, or restart the node", used[0]))
	}
	return errors.Join(errs...)
}

func position(first []string, name string) int {
	if i := slices.Index(first, name); i >= 0 {
		return i
	}
	return len(first)
}

// AdoptRecords copies the agent's records to the current rule layer. Without the records, the agent would treat its own virtual servers as
// foreign. If the node moves to another data plane, it then copies the virtual servers.
func (k *Kernel) AdoptRecords(ctx context.Context) error {
	if k.old.hasRecords() {
		if err := k.adoptRecords(ctx); err != nil {
			return fmt.Errorf("adopt the owner records of an earlier run: %w", err)
		}
	}
	if k.adopter != nil {
		if err := k.adopter.adoptForSync(ctx); err != nil {
			return fmt.Errorf("copy virtual servers from the other data plane: %w", err)
		}
	}
	return nil
}

func (k *Kernel) adoptRecords(ctx context.Context) error {
	sets, members, err := k.members(ctx, k.setPrefix)
	if err != nil {
		return err
	}
	var errs []error
	for _, err := range k.Apply(ctx, k.old.records(&kernel.State{Sets: sets, Members: members})) {
		if !errors.Is(err, kernel.ErrExists) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Read is like reader.Read, but before AdoptRecords, the state also contains the records of an earlier run.
func (k *Kernel) Read(ctx context.Context) (*kernel.State, error) {
	s, err := k.reader.Read(ctx)
	if err == nil {
		k.old.inherit(s)
	}
	return s, err
}

// FindOldRules returns what an earlier run left behind in the other rule layer. FindOldRules, and an Apply that removes old rules, may be
// called while another method runs. Even if a program hangs, both return soon after their context ends.
func (k *Kernel) FindOldRules(ctx context.Context) ([]kernel.OldRules, error) {
	ctx, cancel := context.WithTimeout(ctx, oldLimit)
	defer cancel()
	var found []kernel.OldRules
	var failure error
	if err := k.old.thread.doFor(ctx, func() { found, failure = k.old.find(ctx) }); err != nil {
		return nil, fmt.Errorf("find leftovers of an earlier run: %w", err)
	}
	return found, failure
}
