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

// errReloaded contains no error number, because the object of the request is not at fault.
var errReloaded = errors.New("the module ip_vs was reloaded; retry")

// checkFamily explains ENOENT: either a scheduler or a destination is missing, or the module was unloaded, so that the kernel no longer knows
// the family's number. It returns nil in the first case.
func (b *Backend) checkFamily(ctx context.Context, errs []error) error {
	if !slices.ContainsFunc(errs, func(err error) bool { return errors.Is(err, unix.ENOENT) }) {
		return nil
	}
	before := b.family
	if err := b.resolve(ctx); err != nil {
		return err
	}
	if b.family != before {
		return errReloaded
	}
	return nil
}

// get sends requests that change nothing. If the module was reloaded, it sends them again.
func (b *Backend) get(ctx context.Context, reqs ...nlbatch.Request) ([][]nlbatch.Message, []error) {
	answers, errs := b.conn.Get(ctx, reqs)
	switch err := b.checkFamily(ctx, errs); {
	case errors.Is(err, errReloaded):
		for i := range reqs {
			reqs[i].Type = b.family
		}
		return b.conn.Get(ctx, reqs)
	case err != nil:
		for i := range errs {
			errs[i] = err
		}
	}
	return answers, errs
}

func (b *Backend) request(cmd uint8, attrs []byte) nlbatch.Request {
	return nlbatch.Request{Type: b.family, Payload: slices.Concat(genlHeader(cmd, familyVersion), attrs)}
}
