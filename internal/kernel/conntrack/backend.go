package conntrack

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

const (
	// walkAttempts is how often the table is walked when walks are interrupted by changes.
	walkAttempts = 10
	// batch is how many entries are deleted with one send.
	batch = 256
)

// Backend works on the connections of the network namespace in which it was opened. It is not safe for concurrent use.
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

// EndFlows deletes the stale tracked connections of these protocols and families, and returns how many it deleted. On error, some
// stale ones may remain; none that is not stale is deleted. Entries that cannot be read are kept.
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

// walk is one family's part of EndFlows.
type walk struct {
	backend   *Backend
	family    inet.Family
	protocols []inet.Protocol
	stale     func(kernel.Flow) bool

	// unfiltered is true once the kernel has sent an entry of another protocol: it ignores the filter.
	unfiltered bool

	deletions []nlbatch.Request // collected, not sent yet
	ended     int
	failed    error // of the first entry that could not be deleted
	unread    error // of the first entry that could not be read
}

// repeat walks until no change interrupts the walk.
func (w *walk) repeat(ctx context.Context) error {
	for attempt := 1; ; attempt++ {
		w.failed, w.unread = nil, nil
		err := w.once(ctx)
		if attempt == walkAttempts || !errors.Is(err, nlbatch.ErrDumpInterrupted) {
			return errors.Join(explain(err), w.failed, w.unread)
		}
	}
}

// once walks the table for each protocol. If the kernel ignores the filter, one walk is enough.
func (w *walk) once(ctx context.Context) error {
	for _, p := range w.protocols {
		if err := w.through(ctx, p); err != nil || w.unfiltered {
			return err
		}
	}
	return nil
}

func (w *walk) through(ctx context.Context, asked inet.Protocol) error {
	err := w.backend.table.Walk(ctx, request(cmdGet, w.family, ofProtocol(asked)), func(payload []byte) error {
		w.visit(payload, asked)
		if len(w.deletions) == batch {
			w.sendDeletions(ctx)
		}
		return nil
	})
	w.sendDeletions(ctx)
	return err
}

func (w *walk) visit(payload []byte, asked inet.Protocol) {
	deletion, err := w.judge(payload, asked)
	if err != nil {
		w.unread = firstOf(w.unread, fmt.Errorf("read a connection: %w", err))
		return
	}
	if deletion != nil {
		w.deletions = append(w.deletions, *deletion)
	}
}

// judge returns the request that deletes the entry if it is stale.
func (w *walk) judge(payload []byte, asked inet.Protocol) (*nlbatch.Request, error) {
	e, err := readEntry(payload)
	if err != nil {
		return nil, err
	}
	p, err := protocolOf(e.original)
	w.unfiltered = w.unfiltered || err == nil && p != asked
	if err != nil || !slices.Contains(w.protocols, p) {
		return nil, err
	}
	flow, err := e.flow()
	if err != nil || !w.stale(flow) {
		return nil, err
	}
	deletion := e.deletion(w.family)
	return &deletion, nil
}

// sendDeletions deletes the collected entries. A missing entry has expired.
func (w *walk) sendDeletions(ctx context.Context) {
	for _, err := range w.backend.entries.Do(ctx, w.deletions) {
		switch {
		case err == nil:
			w.ended++
		case !errors.Is(err, unix.ENOENT):
			w.failed = firstOf(w.failed, fmt.Errorf("delete a connection: %w", err))
		}
	}
	w.deletions = w.deletions[:0]
}

// firstOf keeps the first of several errors.
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
