package live

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/conntrack"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/ipset"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/ipvs"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/netdev"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Config selects the parts of the kernel to read.
type Config struct {
	// SetPrefix begins the names of the sets to read.
	SetPrefix string
	// Chains are the owned chains. Others are not read.
	Chains []kernel.ChainID
	// Sysctls to read.
	Sysctls []string
	// Variant of iptables and the families in which it works, as iptables.Detect found them.
	Variant  iptables.Variant
	Families []inet.Family
}

// Kernel is the kernel as seen from the network namespace of the thread that opened it. Files are read and processes run in the
// namespace of the calling thread, so a caller that changes namespaces must lock its goroutine to the thread. One goroutine uses it;
// only Watch runs concurrently.
type Kernel struct {
	setPrefix string
	sysctls   []string
	ipvs      *ipvs.Backend
	ipset     *ipset.Backend
	netdev    *netdev.Backend
	iptables  *iptables.Backend
	// rules is the iptables backend, or what bounds the wait for it.
	rules     rules
	conntrack *conntrack.Backend
}

// Open connects to the kernel. If the node lacks something, the error is kernel.ErrUnavailable and says what to do; all
// such errors are joined.
func Open(cfg Config) (*Kernel, error) {
	k := &Kernel{
		setPrefix: cfg.SetPrefix,
		sysctls:   append(slices.Clone(cfg.Sysctls), kernel.IPv6Switch, kernel.IPv6SwitchOfNext),
		iptables:  iptables.New(iptables.Config{Chains: cfg.Chains, Variant: cfg.Variant, Families: cfg.Families}),
	}
	k.rules = k.iptables
	var errs [4]error
	k.ipvs, errs[0] = ipvs.New()
	k.ipset, errs[1] = ipset.New()
	k.netdev, errs[2] = netdev.New()
	k.conntrack, errs[3] = conntrack.New()
	if err := errors.Join(errs[:]...); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

// WaitAtMost bounds how long the kernel's methods wait for iptables. Without a bound, they wait until its processes end.
func (k *Kernel) WaitAtMost(limit time.Duration) error {
	patient, err := newPatient(k.iptables, limit)
	if err == nil {
		k.rules = patient
	}
	return err
}

// Close releases the sockets. What the kernel holds stays.
func (k *Kernel) Close() error {
	var errs []error
	if p, ok := k.rules.(*patient); ok {
		p.close()
	}
	if k.ipvs != nil {
		errs = append(errs, k.ipvs.Close())
	}
	if k.ipset != nil {
		errs = append(errs, k.ipset.Close())
	}
	if k.netdev != nil {
		errs = append(errs, k.netdev.Close())
	}
	if k.conntrack != nil {
		errs = append(errs, k.conntrack.Close())
	}
	return errors.Join(errs...)
}

// Read returns everything that the agent owns, and all virtual servers. On error the state is nil. It is never partial, except that it may
// lack the rules and say why.
func (k *Kernel) Read(ctx context.Context) (*kernel.State, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("read the kernel: %w", err)
	}
	var s kernel.State
	for _, read := range []func(context.Context, *kernel.State) error{
		k.readSysctls, k.readDevice, k.readSets, k.readRules, k.readServers, k.readTimeouts,
	} {
		if err := read(ctx, &s); err != nil {
			return nil, err
		}
	}
	return &s, nil
}

func (k *Kernel) readSysctls(ctx context.Context, s *kernel.State) (err error) {
	s.Sysctls, err = k.netdev.ReadSysctls(ctx, k.sysctls)
	return err
}

func (k *Kernel) readDevice(ctx context.Context, s *kernel.State) (err error) {
	s.Device, s.Addresses, err = k.netdev.ReadDevice(ctx)
	return err
}

func (k *Kernel) readSets(ctx context.Context, s *kernel.State) (err error) {
	s.Sets, s.Members, err = k.ipset.Read(ctx, k.setPrefix)
	return err
}

func (k *Kernel) readRules(ctx context.Context, s *kernel.State) error {
	s.Rules, s.RulesErr = k.rules.Read(ctx)
	return nil
}

func (k *Kernel) readServers(ctx context.Context, s *kernel.State) (err error) {
	s.Servers, err = k.ipvs.Read(ctx)
	return err
}

func (k *Kernel) readTimeouts(ctx context.Context, s *kernel.State) (err error) {
	s.Timeouts, err = k.ipvs.Timeouts(ctx)
	return err
}

// Lookup returns those of the virtual servers that exist.
func (k *Kernel) Lookup(ctx context.Context, keys []kernel.ServerKey) (map[kernel.ServerKey]kernel.ObservedServer, error) {
	return k.ipvs.Lookup(ctx, keys)
}

// HasDevice says whether kube-ipvs0 exists.
func (k *Kernel) HasDevice(context.Context) (bool, error) { return k.netdev.HasDevice() }

// NodeAddresses returns the usable addresses of the node's interfaces other than kube-ipvs0. On error it returns none.
func (k *Kernel) NodeAddresses(ctx context.Context) ([]netip.Addr, error) {
	return k.netdev.NodeAddresses(ctx)
}

// Network lists the addresses that this node's networks need. On error it returns none.
func (k *Kernel) Network(ctx context.Context) (kernel.Network, error) {
	return k.netdev.Network(ctx)
}

// Listeners returns where processes of the node receive packets. On error it returns none.
func (k *Kernel) Listeners(context.Context) (kernel.Listeners, error) { return k.netdev.Listeners() }

// Schedulers reports which of these schedulers the kernel has, and loads their modules if it can. The result has no entry for one
// that could not be checked.
func (k *Kernel) Schedulers(ctx context.Context, names []string) map[string]bool {
	return k.ipvs.Schedulers(ctx, names)
}

// EndFlows deletes the stale tracked connections of these protocols and returns how many it deleted. Of TCP it deletes only connections
// without an answer. Unlike the other methods, it may be called while another one runs.
func (k *Kernel) EndFlows(ctx context.Context, protocols []inet.Protocol, stale func(kernel.Flow) bool) (int, error) {
	return k.conntrack.EndFlows(ctx, protocols, k.iptables.Families(), stale)
}

// Watch calls disturbed whenever another program may have changed kube-ipvs0 or its addresses, and moved whenever the node's own
// addresses may have changed, until ctx ends. See netdev.
func (k *Kernel) Watch(ctx context.Context, disturbed, moved func()) {
	var wg sync.WaitGroup
	if p, ok := k.rules.(*patient); ok {
		wg.Go(func() { p.watch(ctx, disturbed) })
	}
	k.netdev.Watch(ctx, disturbed, moved)
	wg.Wait()
}

// FindOldRules returns what an earlier start left in the variant of iptables that the node no longer uses.
func (k *Kernel) FindOldRules(ctx context.Context) ([]kernel.OldRules, error) {
	return k.rules.FindOldRules(ctx)
}

// Stats counts what was asked of the kernel since Open.
type Stats struct {
	// Netlink sums up the requests of the backends that count them.
	Netlink nlbatch.Stats
	// Processes of iptables that were started.
	Processes uint64
}

// Stats returns the counts.
func (k *Kernel) Stats() Stats {
	return Stats{
		Netlink:   add(add(k.ipvs.Stats(), k.ipset.Stats()), k.conntrack.Stats()),
		Processes: k.iptables.Stats().Processes,
	}
}

func add(a, b nlbatch.Stats) nlbatch.Stats {
	return nlbatch.Stats{Requests: a.Requests + b.Requests, Sends: a.Sends + b.Sends, Dumps: a.Dumps + b.Dumps}
}
