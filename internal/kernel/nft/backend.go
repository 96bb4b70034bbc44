package nft

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Backend reads and writes the table in the network namespace of the thread that opened it. It is not safe for concurrent use.
type Backend struct {
	conn     *nlbatch.Conn
	families []inet.Family
	// chains are the chains, apart from base chains, that Read and Summarizer read.
	chains []kernel.ChainID
	// balances is true if a Balancer also uses the table.
	balances bool
	// meanwhile runs between the messages of a list. Only tests set it.
	meanwhile func()
}

// WithBalancing makes writes of rules keep the maps and chains of a Balancer. Otherwise, they delete them.
func (b *Backend) WithBalancing() *Backend {
	b.balances = true
	return b
}

// New opens a socket. Read and Summarizer read only the given chains of rules. If the kernel has no nftables, New returns
// kernel.ErrUnavailable.
func New(families []inet.Family, chains []kernel.ChainID) (*Backend, error) {
	conn, err := nlbatch.Dial(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	b := &Backend{conn: conn, families: families, chains: chains}
	if _, err := b.dump(context.Background(), unix.NFT_MSG_GETTABLE, nil); err != nil {
		_ = conn.Close() // report the first error
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
			err = fmt.Errorf("nftables is %w; %s", kernel.ErrUnavailable, kernel.LoadModule("nf_tables"))
		}
		return nil, err
	}
	return b, nil
}

// Close closes the socket. The table stays in the kernel.
func (b *Backend) Close() error { return b.conn.Close() }

// Stats counts the requests since New.
func (b *Backend) Stats() nlbatch.Stats { return b.conn.Stats() }

// listTries is how often a list is repeated because the table changed while the kernel listed it.
const listTries = 5

// list returns what each attempt to list objects of family inet found. torn is true if the table changed during every attempt: then each
// may have an object twice or miss one. Lists of elements are never torn, but can be incomplete: see ListSets.
func (b *Backend) list(ctx context.Context, msg uint16, attrs []byte) (tries [][][]byte, torn bool, err error) {
	for range listTries {
		var payloads [][]byte
		err = b.conn.Walk(ctx, request(msg, 0, attrs), func(p []byte) error {
			payloads = append(payloads, bytes.Clone(p))
			if b.meanwhile != nil {
				b.meanwhile()
			}
			return nil
		})
		if !errors.Is(err, nlbatch.ErrDumpInterrupted) {
			return [][][]byte{payloads}, false, err
		}
		tries = append(tries, payloads)
	}
	return tries, true, nil
}

// dump lists objects, and fails if the list is torn.
func (b *Backend) dump(ctx context.Context, msg uint16, attrs []byte) ([][]byte, error) {
	tries, torn, err := b.list(ctx, msg, attrs)
	if torn {
		return nil, nlbatch.ErrDumpInterrupted
	}
	return tries[0], err
}

// get looks single objects up. It returns nothing for those that do not exist.
func (b *Backend) get(ctx context.Context, reqs []nlbatch.Request) ([][]nlbatch.Message, error) {
	answers, errs := b.conn.Get(ctx, reqs)
	for _, err := range errs {
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, err
		}
	}
	return answers, nil
}

// readGeneration returns the generation number, which counts the changes of nftables by all programs.
func (b *Backend) readGeneration(ctx context.Context) (generation uint32, err error) {
	answers, err := b.get(ctx, []nlbatch.Request{request(unix.NFT_MSG_GETGEN, 0, nil)})
	if err != nil {
		return 0, fmt.Errorf("read the generation of nftables: %w", err)
	}
	for _, m := range answers[0] {
		err = errors.Join(err, eachAttr(m.Payload, func(typ uint16, v []byte) (err error) {
			if typ == unix.NFTA_GEN_ID {
				generation, err = nlbatch.BigUint32(v)
			}
			return err
		}))
	}
	return generation, err
}

// commit runs a transaction, and returns the error of the first request that the kernel refused.
func (b *Backend) commit(ctx context.Context, reqs []nlbatch.Request) error {
	for _, err := range b.conn.Transaction(ctx, begin, reqs, end) {
		if err != nil {
			return err
		}
	}
	return nil
}
