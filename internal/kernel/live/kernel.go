package live

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/conntrack"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/netdev"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/balance"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Config selects the parts of the kernel to read.
type Config struct {
	// SetPrefix is the name prefix of the sets to read.
	SetPrefix string
	// Chains are the agent's own chains. Other chains are not read.
	Chains  []kernel.ChainID
	Sysctls []string
	// Variant is the iptables variant. Families are the families for which it works (iptables.Detect).
	Variant  iptables.Variant
	Families []inet.Family
	// Unsure contains the families whose programs have just hung or failed.
	Unsure  map[inet.Family]error
	Mode    kernel.Mode
	Records []Records
}

// Kernel is the kernel as seen from the network namespace of the thread that opened it. Files are read and processes run in the namespace
// of the calling thread, so a caller that changes namespaces must lock its goroutine to the thread.
//
// Kernel is not safe for concurrent use. The exceptions are Watch, EndFlows, Audit, Summarize, FindOldRules and, for each family, one Apply
// that writes only rules.
type Kernel struct {
	reader
	families   []inet.Family
	iptables   *iptables.Backend        // nil if rules are in nftables
	patients   map[inet.Family]*patient // wait for iptables; nil if rules are in nftables
	nft        *nft.Backend             // for the rules; nil if rules are in iptables
	old        *old
	leftovers  *leftovers
	conntrack  *conntrack.Backend
	auditor    *auditor
	summarizer *summarizer
	forgetter  *balance.Forgetter // nil if IPVS does the load balancing
	adopter    *adopter           // nil if rules are in iptables
	writes     *wire.Writes       // to nftables
	seen       seen               // by quick checks, for audits
}

// Open connects to the kernel. If the node lacks something, the error is kernel.ErrUnavailable and includes the remedy. Open joins several
// such errors.
func Open(cfg Config) (*Kernel, error) {
	k := &Kernel{families: cfg.Families, leftovers: &leftovers{cfg.Chains}, writes: wire.NewWrites()}
	rules, err := k.openRules(cfg)
	if err != nil {
		return nil, err
	}
	cfg.Sysctls = append(slices.Clone(cfg.Sysctls), kernel.IPv6Switch, kernel.IPv6SwitchOfNext)
	var errs [6]error
	k.reader, errs[0] = newReader(cfg, rules, netdev.New)
	k.conntrack, errs[1] = conntrack.New()
	if errs[0] == nil {
		k.auditor, errs[2] = newAuditor(cfg, &k.reader, &k.seen)
		k.summarizer, errs[3] = newSummarizer(cfg, k)
		k.old, errs[4] = openOld(context.Background(), cfg)
		if b, balances := k.balancer.(*balance.Balancer); balances {
			k.forgetter, errs[5] = b.Forgetter(k.writes)
		}
		k.adopter = newAdopter(k, cfg)
		for _, w := range []any{k.nft, k.sets, k.balancer} {
			if w, writes := w.(interface{ AttributeTo(*wire.Writes) }); writes && cfg.Mode.RulesInNFTables() {
				w.AttributeTo(k.writes)
			}
		}
	}
	if err := errors.Join(errs[:]...); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

func (k *Kernel) openRules(cfg Config) (rules, error) {
	if !cfg.Mode.RulesInNFTables() {
		k.iptables = iptables.New(iptables.Config{Chains: cfg.Chains, Variant: cfg.Variant, Families: cfg.Families})
		k.patients = map[inet.Family]*patient{}
		var errs []error
		for _, f := range cfg.Families {
			p, err := newPatient(k.iptables, f)
			if cfg.Unsure[f] != nil {
				p.trouble(time.Now())
			}
			k.patients[f], errs = p, append(errs, err)
		}
		return &byFamily{k.patients}, errors.Join(errs...)
	}
	b, err := nft.New(cfg.Families, cfg.Chains)
	if err != nil {
		return nil, err
	}
	if cfg.Mode.NFTablesBalances() {
		b.WithBalancing()
	}
	k.nft = b
	return &taken{nft: b, families: cfg.Families}, nil
}

// LimitWaits limits how long the kernel's methods wait for iptables. The limit depends on how long earlier calls took. Without LimitWaits,
// methods wait until the iptables processes end.
func (k *Kernel) LimitWaits() {
	for _, p := range k.patients {
		p.limitWaits()
	}
}

// Close releases the sockets. The kernel's state is unchanged.
func (k *Kernel) Close() error {
	var errs []error
	for _, p := range k.patients {
		p.close()
	}
	if k.auditor != nil {
		errs = append(errs, k.auditor.close())
	}
	if k.summarizer != nil {
		errs = append(errs, k.summarizer.close())
	}
	errs = append(errs, k.reader.close())
	if k.nft != nil {
		errs = append(errs, k.nft.Close())
	}
	if k.conntrack != nil {
		errs = append(errs, k.conntrack.Close())
	}
	if k.forgetter != nil {
		errs = append(errs, k.forgetter.Close())
	}
	if k.old != nil {
		errs = append(errs, k.old.close())
	}
	return errors.Join(errs...)
}

// HasDevice reports whether kube-ipvs0 exists.
func (k *Kernel) HasDevice(context.Context) (bool, error) { return k.netdev.HasDevice() }

// NodeAddresses returns the usable addresses of the node's interfaces other than kube-ipvs0. On error, it returns none.
func (k *Kernel) NodeAddresses(ctx context.Context) ([]netip.Addr, error) {
	return k.netdev.NodeAddresses(ctx)
}

// Network returns the gateways of the node's routes and the first and broadcast addresses of its subnets. On error, it returns none.
func (k *Kernel) Network(ctx context.Context) (kernel.Network, error) {
	return k.netdev.Network(ctx)
}

// Listeners returns the sockets on which the node's processes receive packets. On error, it returns none.
func (k *Kernel) Listeners(context.Context) (kernel.Listeners, error) { return k.netdev.Listeners() }

// Schedulers reports which of these schedulers are available, and loads their modules if possible. Schedulers that it could not check
// are absent from the result.
func (k *Kernel) Schedulers(ctx context.Context, names []string) map[string]bool {
	return k.balancer.Schedulers(ctx, names)
}

// EndFlows deletes stale tracked connections of these protocols and returns their number. It deletes a TCP connection only if it is
// unanswered. If nftables does the load balancing, EndFlows also deletes records of clients whose endpoint was removed. Like Audit, it may
// be called while another method runs.
func (k *Kernel) EndFlows(ctx context.Context, protocols []inet.Protocol, stale func(kernel.Flow) bool) (int, error) {
	n, err := k.conntrack.EndFlows(ctx, protocols, k.families, stale)
	if k.forgetter != nil {
		err = errors.Join(err, k.forgetter.Forget(ctx))
	}
	return n, err
}

// Watch runs until ctx ends. It calls disturbed when another program may have changed kube-ipvs0 or its addresses, and moved when the node's
// own addresses may have changed.
func (k *Kernel) Watch(ctx context.Context, disturbed, moved func()) {
	var wg sync.WaitGroup
	for _, p := range k.patients {
		wg.Go(func() { p.watch(ctx, disturbed) })
	}
	k.netdev.Watch(ctx, disturbed, moved)
	wg.Wait()
}

// Stats counts the requests to the kernel since Open.
type Stats struct {
	Netlink nlbatch.Stats
	// Processes counts started iptables processes.
	Processes uint64
}

// Stats returns the counts.
func (k *Kernel) Stats() Stats {
	s := Stats{Netlink: add(add(k.stats(), k.auditor.stats()), add(k.summarizer.stats(), k.conntrack.Stats()))}
	if k.nft != nil {
		s.Netlink = add(s.Netlink, k.nft.Stats())
	} else {
		s.Processes = k.iptables.Processes() + k.old.processes()
	}
	return s
}

func add(a, b nlbatch.Stats) nlbatch.Stats {
	return nlbatch.Stats{Requests: a.Requests + b.Requests, Sends: a.Sends + b.Sends, Dumps: a.Dumps + b.Dumps}
}

// LocalPorts returns the port range that this node's own connections use. On error, it returns the kernel's default.
func LocalPorts() (kernel.Ports, error) { return netdev.LocalPorts() }

// LocalPortRange returns the ports from which the kernel chooses the source ports of this node's own connections.
func LocalPortRange() (kernel.Ports, error) { return netdev.LocalPortRange() }

// ReservedPorts returns the ports that the kernel does not choose.
func ReservedPorts() (kernel.Ports, error) { return netdev.ReservedPorts() }

// ReservePorts replaces the ports that the kernel does not choose.
func ReservePorts(ports kernel.Ports) error { return netdev.ReservePorts(ports) }
