package nft

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Backend reads and writes the table in the network namespace of the thread that opened it. One goroutine uses it.
type Backend struct {
	conn     *nlbatch.Conn
	families []inet.Family
	// balances is true if a Balancer uses the table, too.
	balances bool
}

// WithBalancing keeps what a Balancer has in the table. Without it, writing rules removes that.
func (b *Backend) WithBalancing() *Backend {
	b.balances = true
	return b
}

// New opens a socket. If the kernel has no nftables, the error is kernel.ErrUnavailable.
func New(families []inet.Family) (*Backend, error) {
	conn, err := nlbatch.Dial(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	b := &Backend{conn: conn, families: families}
	if _, err := b.dump(context.Background(), unix.NFT_MSG_GETTABLE, nil); err != nil {
		_ = conn.Close() // the first error matters
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
			err = fmt.Errorf("nftables is %w; %s", kernel.ErrUnavailable, kernel.LoadModule("nf_tables"))
		}
		return nil, err
	}
	return b, nil
}

// Close releases the socket. What the kernel holds stays.
func (b *Backend) Close() error { return b.conn.Close() }

// Stats counts the requests since New.
func (b *Backend) Stats() nlbatch.Stats { return b.conn.Stats() }

// dumpTries bounds how often a list is read again because it changed meanwhile.
const dumpTries = 5

// dump lists objects of family inet.
func (b *Backend) dump(ctx context.Context, msg uint16, attrs []byte) (payloads [][]byte, err error) {
	for range dumpTries {
		payloads, err = b.conn.Dump(ctx, request(msg, 0, attrs))
		if !errors.Is(err, nlbatch.ErrDumpInterrupted) {
			break
		}
	}
	return payloads, err
}

// commit runs a transaction. The error is that of the first request that the kernel refused.
func (b *Backend) commit(ctx context.Context, reqs []nlbatch.Request) error {
	for _, err := range b.conn.Transaction(ctx, begin, reqs, end) {
		if err != nil {
			return err
		}
	}
	return nil
}
