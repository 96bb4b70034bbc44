package ipset

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Backend talks to ipset in the network namespace in which it was opened. It is not safe for concurrent use.
type Backend struct {
	conn *nlbatch.Conn
}

// New opens the backend. If the kernel has no ipset and cannot load it, the error is kernel.ErrUnavailable.
func New() (*Backend, error) {
	conn, err := nlbatch.Dial(unix.NETLINK_NETFILTER)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, errNoModule
	}
	if err != nil {
		return nil, fmt.Errorf("open ipset: %w", err)
	}
	b := &Backend{conn: conn}
	if err := b.probe(context.Background()); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return b, nil
}

// probe requests the protocol version, which makes the kernel load the module.
func (b *Backend) probe(ctx context.Context) error {
	_, errs := b.conn.Get(ctx, []nlbatch.Request{request(cmdProtocol, nil)})
	if errors.Is(errs[0], unix.EINVAL) { // nfnetlink's errno for an unknown subsystem
		return errNoModule
	}
	if errs[0] != nil {
		return fmt.Errorf("open ipset: %w", errs[0])
	}
	return nil
}

var errNoModule = fmt.Errorf("open ipset: %w: the module ip_set is not loaded; %s", kernel.ErrUnavailable, kernel.LoadModule("ip_set"))

// Close releases the socket.
func (b *Backend) Close() error { return b.conn.Close() }

// Stats counts requests, except those sent by the netlink library.
func (b *Backend) Stats() nlbatch.Stats { return b.conn.Stats() }
