package wire

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Conn reads and writes the table in the network namespace of the thread that opened it. It is not safe for concurrent use.
type Conn struct {
	conn *nlbatch.Conn
	// countAfter is when elements may be counted again.
	countAfter time.Time
	// Meanwhile runs between the messages of a list. Only tests set it.
	Meanwhile  func()
	attributed bool // see AttributeTo
}

// Dial opens a socket. If the kernel lacks nftables, Dial returns kernel.ErrUnavailable.
func Dial() (*Conn, error) {
	conn, err := nlbatch.Dial(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	c := &Conn{conn: conn}
	if _, err := c.dump(context.Background(), unix.NFT_MSG_GETTABLE, nil); err != nil {
		_ = conn.Close() // report the first error
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
			err = fmt.Errorf("nftables is %w; %s", kernel.ErrUnavailable, kernel.LoadModule("nf_tables"))
		}
		return nil, err
	}
	return c, nil
}

// Close closes the socket. The table stays in the kernel.
func (c *Conn) Close() error { return c.conn.Close() }

// Stats counts the requests since Dial.
func (c *Conn) Stats() nlbatch.Stats { return c.conn.Stats() }

const listTries = 5

// list returns the objects found by each attempt to list objects of family inet. torn is true if the table changed during every attempt.
// Each list may then contain an object twice or miss one. Lists of elements are never torn, but can be incomplete: see Elements.
func (c *Conn) list(ctx context.Context, msg uint16, attrs []byte) (tries [][][]byte, torn bool, err error) {
	for range listTries {
		var payloads [][]byte
		err = c.conn.Walk(ctx, request(msg, 0, attrs), func(p []byte) error {
			payloads = append(payloads, bytes.Clone(p))
			if c.Meanwhile != nil {
				c.Meanwhile()
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

// dump lists objects. If the list is torn, it returns the last attempt with the error nlbatch.ErrDumpInterrupted.
func (c *Conn) dump(ctx context.Context, msg uint16, attrs []byte) ([][]byte, error) {
	tries, torn, err := c.list(ctx, msg, attrs)
	if torn {
		err = nlbatch.ErrDumpInterrupted
	}
	return tries[len(tries)-1], err
}

// Get looks up single objects. Objects that do not exist are absent from the result.
func (c *Conn) Get(ctx context.Context, reqs []nlbatch.Request) ([][]nlbatch.Message, error) {
	answers, errs := c.conn.Get(ctx, reqs)
	for _, err := range errs {
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, err
		}
	}
	return answers, nil
}

// Generation returns the generation number, which counts the changes that all programs make to nftables.
func (c *Conn) Generation(ctx context.Context) (uint32, error) { return Generation(ctx, c.conn) }

// Generation is Conn.Generation for callers that need no table.
func Generation(ctx context.Context, conn *nlbatch.Conn) (generation uint32, err error) {
	answers, errs := conn.Get(ctx, []nlbatch.Request{request(unix.NFT_MSG_GETGEN, 0, nil)})
	if errs[0] != nil {
		return 0, fmt.Errorf("read the generation of nftables: %w", errs[0])
	}
	for _, m := range answers[0] {
		a, wrong := parse(m.Payload)
		err = errors.Join(err, wrong)
		generation = a.number(unix.NFTA_GEN_ID, &err)
	}
	if err == nil && generation == 0 { // the kernel skips 0
		err = errNoGeneration
	}
	return generation, err
}

var errNoGeneration = errors.New("the kernel did not report the generation of nftables")

// Transact runs a transaction, and returns an error for each request. If any request fails, the kernel changes nothing. After AttributeTo, the
// table must exist, or the requests must create it.
//
// The kernel reports the generation of a transaction whose first request has NLM_F_ECHO. It also reports what that request changes, so the
// first request changes nothing.
func (c *Conn) Transact(ctx context.Context, reqs []nlbatch.Request) []error {
	if !c.attributed {
		return c.conn.Transaction(ctx, begin, reqs, end)
	}
	first := NewTable()
	first.Flags |= unix.NLM_F_ECHO
	errs := c.conn.Transaction(ctx, begin, append([]nlbatch.Request{first}, reqs...), end)
	if errs[0] == nil {
		return errs[1:]
	}
	for i := range errs {
		errs[i] = cmp.Or(errs[i], errs[0])
	}
	return errs[1:]
}

// Try runs a transaction without committing it. This loads the necessary modules.
func (c *Conn) Try(ctx context.Context, reqs []nlbatch.Request) []error {
	return c.conn.Transaction(ctx, begin, reqs)
}

// Commit runs a transaction, and returns the error of the first request that the kernel refused.
func (c *Conn) Commit(ctx context.Context, reqs []nlbatch.Request) error {
	for _, err := range c.Transact(ctx, reqs) {
		if err != nil {
			return err
		}
	}
	return nil
}

// TableName is the name of the agent's table, in the family inet.
const TableName = "kube-ipvs"

// Table is what the kernel reports about the table.
type Table struct {
	Exists bool
	Used   uint32 // the number of objects in the table
	flags  uint32
}

// Table reads the table.
func (c *Conn) Table(ctx context.Context) (t Table, err error) {
	payloads, err := c.dump(ctx, unix.NFT_MSG_GETTABLE, nil)
	for _, p := range payloads {
		a, wrong := parse(p)
		err = errors.Join(err, wrong)
		if a.Text(unix.NFTA_TABLE_NAME) == TableName {
			t = Table{true, a.number(unix.NFTA_TABLE_USE, &err), a.number(unix.NFTA_TABLE_FLAGS, &err)}
		}
	}
	return t, err
}

// Dormant reports whether packets skip the table.
func (t Table) Dormant() bool { return t.flags&tableDormant != 0 }

// Wake makes packets traverse the table again.
func (t Table) Wake() nlbatch.Request {
	b := nlbatch.AppendString(nil, unix.NFTA_TABLE_NAME, TableName)
	return request(unix.NFT_MSG_NEWTABLE, 0, nlbatch.AppendBigUint32(b, unix.NFTA_TABLE_FLAGS, t.flags&^tableDormant))
}

// NewTable creates the table if it does not exist.
func NewTable() nlbatch.Request {
	return request(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, nlbatch.AppendString(nil, unix.NFTA_TABLE_NAME, TableName))
}

// TableRequest returns a request about another program's table, in any family, or about objects in it. All messages have the same attribute for
// the table.
func TableRequest(msg uint16, family byte, name string) nlbatch.Request {
	r := request(msg, 0, nlbatch.AppendString(nil, unix.NFTA_TABLE_NAME, name))
	r.Payload[0] = family
	return r
}

// Drop deletes the table with everything in it, in one step.
func (c *Conn) Drop(ctx context.Context) error {
	err := c.Commit(ctx, []nlbatch.Request{request(unix.NFT_MSG_DELTABLE, 0, nlbatch.AppendString(nil, unix.NFTA_TABLE_NAME, TableName))})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete table inet %s: %w", TableName, err)
	}
	return nil
}
