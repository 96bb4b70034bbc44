package sockets

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/forward"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/netdev"
)

// grace is how long open connections that carry data may take to end when the agent stops.
const grace = 10 * time.Second

// Config configures the kernel.
type Config struct {
	Families []inet.Family
	Limits   forward.Limits
	// Admission decides which clients a port admits. No rules do.
	Admission kernel.Admission
	Sysctls   []string
}

// Kernel implements the agent's kernel. It is not safe for concurrent use, except for Watch, Audit, Summarize, Traffic, Connections and SetPods.
type Kernel struct {
	*table
	link    *link
	node    *netdev.Backend
	sysctls []string

	auditing sync.Mutex
	auditor  *netdev.Backend
	comparer kernel.Comparer
}

// Open returns a kernel without virtual servers. It changes nothing on the node.
func Open(cfg Config) (*Kernel, error) {
	node, err := netdev.New()
	if err != nil {
		return nil, err
	}
	auditor, err := node.NewReader()
	if err != nil {
		return nil, errors.Join(err, node.Close())
	}
	k := &Kernel{node: node, auditor: auditor, sysctls: append(slices.Clone(cfg.Sysctls), kernel.IPv6Switch, kernel.IPv6SwitchOfNext)}
	n, err := openNamespace(cfg.Families)
	if err == nil {
		if k.link, err = openLink(n); err != nil {
			err = errors.Join(err, n.close())
		}
	}
	if err != nil {
		return nil, errors.Join(err, node.Close(), auditor.Close())
	}
	node.WatchRoutes(k.link.routes)
	f := forward.New(cfg.Limits)
	k.table = newTable(f, cfg.Admission)
	f.OpenIn(func(at netip.AddrPort, open func()) {
		if slices.Contains(k.nodeAddresses(), at.Addr()) {
			open()
		} else {
			n.do(open)
		}
	})
	return k, nil
}

// Close closes all ports, and removes kube-ipvs0. Connections that carry data may take some seconds to end.
func (k *Kernel) Close() error {
	k.forwarder.Close(grace)
	err := k.link.delete()
	k.link.node.Close()
	return errors.Join(err, k.link.namespace.close(), k.node.Close(), k.auditor.Close())
}

// Watch calls disturbed when another program may have changed kube-ipvs0 or deleted a route to it, and moved when the node's own addresses may
// have changed.
func (k *Kernel) Watch(ctx context.Context, disturbed, moved func()) {
	k.node.Watch(ctx, disturbed, moved)
}

// LimitWaits does nothing: no method waits for another program.
func (k *Kernel) LimitWaits() {}

// PrepareMove returns an error: a node never moves by itself from user space.
func (k *Kernel) PrepareMove(context.Context, map[kernel.ServerKey]struct{}) (int, error) {
	return 0, errors.ErrUnsupported
}

// Read implements the agent's interface.
func (k *Kernel) Read(ctx context.Context) (*kernel.State, error) { return k.read(ctx, k.node) }

func (k *Kernel) read(ctx context.Context, node *netdev.Backend) (*kernel.State, error) {
	s := kernel.NewState()
	var err error
	if s.Sysctls, err = node.ReadSysctls(ctx, k.sysctls); err != nil {
		return nil, err
	}
	if s.Device, s.Addresses, err = k.link.read(); err != nil {
		return nil, err
	}
	k.table.Read(s)
	return s, nil
}

// Audit implements the agent's interface.
func (k *Kernel) Audit(ctx context.Context, asked kernel.Audit) (*kernel.Differences, error) {
	k.auditing.Lock()
	defer k.auditing.Unlock()
	fresh, err := k.read(ctx, k.auditor)
	if err != nil {
		k.comparer = kernel.Comparer{}
		return nil, err
	}
	d := k.comparer.Compare(fresh, asked, k.table.Lookup(asked.Limited))
	d.Node, _ = k.auditor.Node(ctx) // the agent's loop reads it again, and reports the error
	return d, nil
}

// Summarize implements the agent's interface. No other program can change the table.
func (k *Kernel) Summarize(ctx context.Context, sample kernel.Sample) (*kernel.Summary, error) {
	s := &kernel.Summary{Rules: map[inet.Family]uint64{}}
	var err error
	if s.Sysctls, err = k.auditor.ReadSysctls(ctx, k.sysctls); err != nil {
		return nil, err
	}
	k.table.Summarize(sample, s)
	return s, nil
}

// Apply implements the agent's interface. It keeps the order of the operations: an address is routed after its ports
// are open.
func (k *Kernel) Apply(ctx context.Context, ops []kernel.Op) []error {
	errs := make([]error, 0, len(ops))
	for len(ops) > 0 {
		n, part := 1, partOf(ops[0])
		for n < len(ops) && partOf(ops[n]) == part {
			n++
		}
		switch part {
		case onNode:
			errs = append(errs, k.node.Apply(ctx, ops[:n])...)
		case onLink:
			for _, op := range ops[:n] {
				errs = append(errs, k.link.apply(op))
			}
		default:
			errs = append(errs, k.table.Apply(ctx, ops[:n])...)
		}
		ops = ops[n:]
	}
	return errs
}

type part int

const (
	inTable part = iota
	onLink
	onNode
)

func partOf(op kernel.Op) part {
	switch op.KindOf() {
	case kernel.KindSysctl:
		return onNode
	case kernel.KindDevice, kernel.KindAddress:
		return onLink
	}
	return inTable
}

// Lookup implements the agent's interface.
func (k *Kernel) Lookup(_ context.Context, keys []kernel.ServerKey) (map[kernel.ServerKey]kernel.ObservedServer, error) {
	return k.table.Lookup(keys), nil
}

// LookupMembers implements the agent's interface.
func (k *Kernel) LookupMembers(_ context.Context, members []kernel.Member) (map[kernel.Member]struct{}, error) {
	return k.table.LookupMembers(members), nil
}

// HasDevice implements the agent's interface.
func (k *Kernel) HasDevice(context.Context) (bool, error) {
	found, err := k.link.current()
	return found != nil, err
}

// NodeAddresses implements the agent's interface. The table also learns them: the node itself is inside the cluster.
func (k *Kernel) NodeAddresses(ctx context.Context) ([]netip.Addr, error) {
	addrs, err := k.node.NodeAddresses(ctx)
	if err == nil {
		k.table.SetNode(addrs)
	}
	return addrs, err
}

// Network implements the agent's interface.
func (k *Kernel) Network(ctx context.Context) (kernel.Network, error) { return k.node.Network(ctx) }

// Listeners implements the agent's interface. It leaves out the table's own node ports.
func (k *Kernel) Listeners(context.Context) (kernel.Listeners, error) {
	all, err := k.node.Listeners()
	for _, key := range k.table.keys() {
		delete(all, key)
	}
	return all, err
}

// Schedulers implements the agent's interface. The forwarder ignores the scheduler.
func (k *Kernel) Schedulers(_ context.Context, names []string) map[string]bool {
	all := map[string]bool{}
	for _, name := range names {
		all[name] = true
	}
	return all
}

// AdoptRecords implements the agent's interface. The table does not outlive the process, so an earlier agent left no records.
func (k *Kernel) AdoptRecords(context.Context) error { return nil }

// FindOldRules implements the agent's interface.
func (k *Kernel) FindOldRules(context.Context) ([]kernel.OldRules, error) { return nil, nil }

// FindLeftovers implements the agent's interface.
func (k *Kernel) FindLeftovers(context.Context) (kernel.Leftovers, error) {
	return kernel.Leftovers{}, nil
}

// EndFlows implements the agent's interface. The forwarder ends the flows of removed endpoints itself.
func (k *Kernel) EndFlows(context.Context, []inet.Protocol, func(kernel.Flow) bool) (int, error) {
	return 0, nil
}
