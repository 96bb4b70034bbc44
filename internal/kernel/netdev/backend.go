package netdev

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

const linkTimeout = 5 * time.Second

// Backend reads and changes the network namespace in which it was created. It is not safe for concurrent use, except for Watch.
type Backend struct {
	links         *netlink.Handle
	addrs         *nlbatch.Conn
	routes        *nlbatch.Conn // for dumps that the kernel filters
	sysctls       sysctlTree
	known         *knownDevice
	resolverFiles []*resolverFile
	// routed reports whether an address should have a unicast route with the agent's protocol number; nil if none has.
	routed func(netip.Addr) bool
	// handled, if set, is called with each batch of events after Watch has handled it; tests wait for this call.
	handled func([]syscall.NetlinkMessage)
}

// WatchRoutes lets Watch also call disturbed when a route is deleted that an agent in user space needs. Call it before Watch.
func (b *Backend) WatchRoutes(routed func(netip.Addr) bool) { b.routed = routed }

// New opens the backend's sockets in the network namespace of the calling thread.
func New() (*Backend, error) { return open(&knownDevice{}) }

// NewReader opens a second backend for concurrent reads in the network namespace of the calling thread. Its reads of the device also inform
// this backend's Watch.
func (b *Backend) NewReader() (*Backend, error) { return open(b.known) }

func open(known *knownDevice) (*Backend, error) {
	links, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket for links: %w", err)
	}
	if err := links.SetSocketTimeout(linkTimeout); err != nil {
		links.Close()
		return nil, fmt.Errorf("limit wait for links: %w", err)
	}
	addrs, err := nlbatch.Dial(unix.NETLINK_ROUTE)
	if err != nil {
		links.Close()
		return nil, fmt.Errorf("open netlink socket for addresses: %w", err)
	}
	routes, err := nlbatch.DialStrict(unix.NETLINK_ROUTE)
	if err != nil {
		links.Close()
		return nil, errors.Join(fmt.Errorf("open netlink socket for routes: %w", err), addrs.Close())
	}
	return &Backend{
		links: links, addrs: addrs, routes: routes, sysctls: chooseSysctls(mountedSysctls, ownSysctls), known: known,
		resolverFiles: openResolverFiles(resolverFiles),
	}, nil
}

// Close closes the sockets. A running Watch is not affected.
func (b *Backend) Close() error {
	b.links.Close()
	return errors.Join(b.addrs.Close(), b.routes.Close())
}

// Apply tries the operations in order. Consecutive operations on different addresses share a batch, which creates first.
func (b *Backend) Apply(ctx context.Context, ops []kernel.Op) []error {
	errs := make([]error, len(ops))
	for from := 0; from < len(ops); {
		to := from + 1
		if ops[from].KindOf() == kernel.KindAddress {
			to = from + addressRun(ops[from:])
			b.applyAddresses(ctx, ops[from:to], errs[from:to])
		} else {
			errs[from] = b.applyOne(ctx, ops[from])
		}
		from = to
	}
	return errs
}

// addressRun returns the number of operations before the first one that does not belong to the same batch.
func addressRun(ops []kernel.Op) int {
	seen := make(map[netip.Addr]struct{}, len(ops))
	for i, op := range ops {
		a, address := op.Object.(kernel.BoundAddress)
		if _, repeated := seen[a.Addr]; !address || repeated {
			return i
		}
		seen[a.Addr] = struct{}{}
	}
	return len(ops)
}

func (b *Backend) applyOne(ctx context.Context, op kernel.Op) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	switch obj := op.Object.(type) {
	case kernel.SysctlSetting:
		if op.Verb == kernel.Ensure {
			return b.sysctls.write(obj)
		}
	case kernel.DummyDevice:
		switch op.Verb {
		case kernel.Create:
			return b.createDevice()
		case kernel.Delete:
			return b.deleteDevice()
		}
	}
	return fmt.Errorf("%s: %w", op, errors.ErrUnsupported)
}
