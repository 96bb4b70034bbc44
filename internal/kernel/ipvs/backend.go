package ipvs

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Backend talks to the IPVS of the network namespace in which it was opened. It is not safe for concurrent use.
type Backend struct {
	conn *nlbatch.Conn
	// family is the number that the kernel assigned to IPVS. It changes when the module is reloaded.
	family uint16
}

// New opens the backend. If the kernel has no IPVS and cannot load it, the error is kernel.ErrUnavailable.
func New() (*Backend, error) {
	conn, err := nlbatch.Dial(unix.NETLINK_GENERIC)
	if err != nil {
		return nil, fmt.Errorf("open IPVS: %w", err)
	}
	b := &Backend{conn: conn}
	if err := b.resolve(context.Background()); err != nil {
		return nil, errors.Join(fmt.Errorf("open IPVS: %w", err), conn.Close())
	}
	return b, nil
}

// Close releases the socket.
func (b *Backend) Close() error { return b.conn.Close() }

// Stats counts the requests made so far.
func (b *Backend) Stats() nlbatch.Stats { return b.conn.Stats() }

// errNoModule includes the remedy. Since Linux 5.12, the request for the family already makes the kernel try to load the module.
var errNoModule = fmt.Errorf("%w: the module ip_vs is not loaded; %s", kernel.ErrUnavailable, kernel.LoadModule("ip_vs"))

func (b *Backend) resolve(ctx context.Context) error {
	answers, errs := b.conn.Get(ctx, []nlbatch.Request{familyRequest()})
	if errors.Is(errs[0], unix.ENOENT) {
		return errNoModule
	}
	if errs[0] != nil {
		return fmt.Errorf("look up netlink family %s: %w", familyName, errs[0])
	}
	for _, m := range answers[0] {
		id, err := decodeFamily(m.Payload)
		if err != nil {
			return fmt.Errorf("look up netlink family %s: %w", familyName, err)
		}
		b.family = id
	}
	if b.family == 0 {
		return fmt.Errorf("look up netlink family %s: empty answer", familyName)
	}
	return nil
}

func (b *Backend) request(cmd uint8, attrs []byte) nlbatch.Request {
	return nlbatch.Request{Type: b.family, Payload: slices.Concat(genlHeader(cmd, familyVersion), attrs)}
}
