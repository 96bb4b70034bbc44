package kerneltest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Fake is a kernel in memory. It rejects what a real kernel rejects, prints itself (Dump), can be created from text (parseDump), and fails
// on demand (SetFaults, FailNext, Refuse, CrashAfter, DumpMisses). It is safe for concurrent use.
type Fake struct {
	mu sync.Mutex

	chains    []kernel.ChainID // ours
	sysctls   map[string]string
	device    bool
	addresses map[netip.Addr]kernel.Binding
	sets      map[string]*set
	tables    map[inet.Family]tables
	views     map[inet.Family]kernel.RulesView // what reads return for the tables that have not changed since
	oldRules  []kernel.OldRules
	leftovers kernel.Leftovers
	servers   map[kernel.ServerKey]*server
	timeouts  kernel.Timeouts
	// marked counts firewall-mark virtual servers. touched contains the values set by TouchRules.
	marked    int
	touched   map[inet.Family]uint64
	nodeAddrs map[netip.Addr]struct{}
	network   kernel.Network
	listeners kernel.Listeners
	flows     []kernel.Flow

	// lacking are the schedulers whose modules are missing.
	lacking map[string]bool
	// fixed are the read-only sysctls.
	fixed map[string]bool

	comparer kernel.Comparer
	slow     slowness
	writes   int

	faults faults
	counts Counts
	hook   func(kernel.Op, error)
}

// New returns an empty kernel with every module. Read treats the given chains as ours, or all chains except built-in ones if none are
// given.
func New(chains ...kernel.ChainID) *Fake {
	return &Fake{
		chains:    chains,
		sysctls:   freshSysctls(),
		addresses: map[netip.Addr]kernel.Binding{},
		sets:      map[string]*set{},
		tables:    map[inet.Family]tables{inet.IPv4: freshTables(), inet.IPv6: freshTables()},
		views:     map[inet.Family]kernel.RulesView{},
		servers:   map[kernel.ServerKey]*server{},
		timeouts:  freshTimeouts,
		touched:   map[inet.Family]uint64{},
		nodeAddrs: map[netip.Addr]struct{}{},
		lacking:   map[string]bool{},
		fixed:     map[string]bool{},
		faults:    freshFaults(),
		counts:    Counts{Ops: map[kernel.Kind]int{}},
	}
}

// Read implements Kernel.
func (f *Fake) Read(ctx context.Context) (*kernel.State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts.Reads++
	if err := errors.Join(ctx.Err(), f.faults.read()); err != nil {
		return nil, fmt.Errorf("read kernel: %w", err)
	}
	s := f.copyState()
	for key := range f.faults.missed {
		delete(s.Servers, key)
	}
	clear(f.faults.missed)
	hideLimits(s)
	s.RulesErr = maps.Clone(f.faults.stuck)
	for family := range s.RulesErr {
		delete(s.Rules, family)
	}
	return s, nil
}

// State returns what Read would return without faults, plus the connection limits of destinations. Tests use it for assertions, because it
// is not counted and never fails.
func (f *Fake) State() *kernel.State {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.copyState()
}

// View is like State, but much cheaper, because it does not copy the members of the sets. Callers must not modify the result.
func (f *Fake) View() *kernel.State {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state()
}

func (f *Fake) copyState() *kernel.State {
	s := f.state()
	for name, members := range s.Members {
		s.Members[name] = maps.Clone(members)
	}
	return s
}

func (f *Fake) state() *kernel.State {
	s := kernel.NewState()
	f.readSysctls(s)
	f.readDevice(s)
	f.readSets(s)
	f.readRules(s)
	f.readServers(s)
	s.Timeouts = f.timeouts
	return s
}

// Lookup implements Kernel.
func (f *Fake) Lookup(
	ctx context.Context, keys []kernel.ServerKey,
) (map[kernel.ServerKey]kernel.ObservedServer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts.Lookups++
	f.counts.LookedUp += len(keys)
	if err := errors.Join(ctx.Err(), f.faults.read()); err != nil {
		return nil, fmt.Errorf("look up %d virtual servers: %w", len(keys), err)
	}
	found := map[kernel.ServerKey]kernel.ObservedServer{}
	for _, key := range keys {
		if s, ok := f.servers[key]; ok {
			found[key] = s.observe()
		}
	}
	return found, nil
}

// LookupMembers implements Kernel.
func (f *Fake) LookupMembers(ctx context.Context, members []kernel.Member) (map[kernel.Member]struct{}, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts.Lookups++
	if err := errors.Join(ctx.Err(), f.faults.read()); err != nil {
		return nil, fmt.Errorf("look up %d members: %w", len(members), err)
	}
	found := map[kernel.Member]struct{}{}
	for _, m := range members {
		if s, exists := f.sets[m.Set]; exists {
			if _, exists := s.members[m.Element]; exists {
				found[m] = struct{}{}
			}
		}
	}
	return found, nil
}

// Apply implements Kernel.
func (f *Fake) Apply(ctx context.Context, ops []kernel.Op) []error {
	errs := make([]error, len(ops))
	for i, op := range ops {
		if err := ctx.Err(); err != nil {
			errs[i] = fmt.Errorf("%s: %w", op, err)
			continue
		}
		errs[i] = f.applyOne(op)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts.Batches++
	return errs
}

// applyOne calls the hook without holding the lock, because the hook may call the fake.
func (f *Fake) applyOne(op kernel.Op) error {
	f.mu.Lock()
	err := f.tryFaulty(op)
	hook := f.hook
	f.mu.Unlock()
	if hook != nil {
		hook(op, err)
	}
	return err
}

func (f *Fake) tryFaulty(op kernel.Op) error {
	f.counts.Ops[op.KindOf()]++
	fault := f.faults.op(op.KindOf())
	if fault.err != nil && !fault.lost {
		return fmt.Errorf("%s: %w", op, fault.err)
	}
	if rules, ok := op.Object.(kernel.Ruleset); ok && f.faults.stuck[rules.Family] != nil {
		return fmt.Errorf("%s: %w", op, f.faults.stuck[rules.Family])
	}
	if f.faults.refuse != nil {
		if err := f.faults.refuse(op); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	if err := f.try(op); err != nil {
		return err
	}
	if fault.err != nil {
		return fmt.Errorf("%s: %w", op, fault.err)
	}
	return nil
}

func (f *Fake) try(op kernel.Op) error {
	f.writes++
	if err := f.dispatch(op); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

func (f *Fake) dispatch(op kernel.Op) error {
	switch obj := op.Object.(type) {
	case kernel.SysctlSetting:
		return f.applySysctl(op.Verb, obj)
	case kernel.DummyDevice:
		return f.applyDevice(op.Verb)
	case kernel.BoundAddress:
		return f.applyAddress(op.Verb, obj)
	case kernel.Set:
		return f.applySet(op.Verb, obj)
	case kernel.Member:
		return f.applyMember(op.Verb, obj)
	case kernel.Ruleset:
		return f.applyRules(op.Verb, obj)
	case kernel.OldRules:
		return f.applyOldRules(op.Verb, obj)
	case kernel.Leftover:
		return f.applyLeftover(op.Verb, obj)
	case kernel.Server:
		return f.applyServer(op.Verb, obj)
	case kernel.ServerDestination:
		return f.applyDestination(op.Verb, obj)
	case kernel.Timeouts:
		return f.applyTimeouts(op.Verb, obj)
	}
	return fmt.Errorf("the fake does not support objects of type %T", op.Object)
}

// errVerb reports a bug in the caller, not a kernel error.
func errVerb(object string) error { return fmt.Errorf("no such verb for %s", object) }

// OnOp sets a function that is called with each operation and its result, so that a test can check what a packet would see between two
// operations. Calls of Apply at the same time call it at the same time. Nil removes the function.
func (f *Fake) OnOp(hook func(kernel.Op, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = hook
}

// Counts are the calls and operations since the previous TakeCounts.
type Counts struct {
	Reads int
	// Lookups counts calls to Lookup. LookedUp counts their keys.
	Lookups, LookedUp int
	// NodeReads counts calls to NodeAddresses, SocketLists counts calls to Listeners, and FlowWalks counts calls to EndFlows.
	NodeReads, SocketLists, FlowWalks int
	Summaries                         int
	// Batches counts calls to Apply. Ops counts their operations by kind, including failed operations.
	Batches int
	Ops     map[kernel.Kind]int
}

// Writes is the number of operations of all kinds.
func (c Counts) Writes() int {
	n := 0
	for _, ops := range c.Ops {
		n += ops
	}
	return n
}

// TakeCounts returns the counts since the previous call.
func (f *Fake) TakeCounts() Counts {
	f.mu.Lock()
	defer f.mu.Unlock()
	counts := f.counts
	f.counts = Counts{Ops: map[kernel.Kind]int{}}
	return counts
}
