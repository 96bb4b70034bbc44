package conntrack

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Backend reads and deletes tracked connections in the network namespace in which it was opened. It is not safe for concurrent
// use.
type Backend struct {
	table   *nlbatch.Conn // walks
	entries *nlbatch.Conn // deletes during a walk
}

// New opens the backend's sockets. It does not check whether the kernel can list connections.
func New() (*Backend, error) {
	table, err := nlbatch.Dial(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open connection tracking: %w", err)
	}
	entries, err := nlbatch.Dial(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open connection tracking: %w", err), table.Close())
	}
	return &Backend{table: table, entries: entries}, nil
}

// Close releases the sockets.
func (b *Backend) Close() error { return errors.Join(b.table.Close(), b.entries.Close()) }

// Stats counts the requests made so far.
func (b *Backend) Stats() nlbatch.Stats {
	t, e := b.table.Stats(), b.entries.Stats()
	return nlbatch.Stats{Requests: t.Requests + e.Requests, Sends: t.Sends + e.Sends, Dumps: t.Dumps + e.Dumps}
}

// EndFlows deletes the stale tracked connections of these protocols and families, and returns their number. On error, some stale
// connections may remain, but no other connection was deleted. Unreadable entries and answered TCP connections are kept.
func (b *Backend) EndFlows(
	ctx context.Context, protocols []inet.Protocol, families []inet.Family, stale func(kernel.Flow) bool,
) (ended int, err error) {
	var errs []error
	for _, family := range families {
		w := &walk{backend: b, family: family, protocols: protocols, stale: stale}
		if err := w.repeat(ctx); err != nil {
			errs = append(errs, fmt.Errorf("end tracked %s connections: %w", family, err))
		}
		ended += w.ended
	}
	return ended, errors.Join(errs...)
}

func firstOf(first, next error) error {
	if first != nil {
		return first
	}
	return next
}

func explain(err error) error {
	switch {
	case errors.Is(err, unix.EINVAL): // nfnetlink's errno for an unknown subsystem
		return fmt.Errorf("listing connections is %w: the module nf_conntrack_netlink is not loaded; run "+
			"`modprobe nf_conntrack_netlink` on the node: %w", kernel.ErrUnavailable, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("capability NET_ADMIN is missing: %w", err)
	}
	return err
}
