package nlbatch

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Transaction sends the requests in one message between begin and end, as nfnetlink requires for requests that take effect together. It
// returns an error or nil for each request. If any request fails, none takes effect: the kernel tries all of them and then undoes them.
// Without an end, the kernel always undoes them, as in a dry run.
func (c *Conn) Transaction(ctx context.Context, begin Request, reqs []Request, end ...Request) []error {
	errs := make([]error, len(reqs))
	if err := c.ready(ctx); err != nil {
		notSent(errs, err)
		return errs
	}
	w := c.open(begin, reqs, end, errs)
	if err := c.sock.send(c.out); err != nil {
		_ = c.Close()
		notSent(errs, err)
		return errs
	}
	c.stats.Requests += uint64(len(reqs))
	c.stats.Sends++
	for w.left > 0 {
		if err := c.receive(ctx, w.message); err != nil {
			_ = c.Close() // the rest of the answers is unread
			w.giveUp(err)
			return errs
		}
	}
	if w.refused {
		_ = c.Close() // if the kernel refuses only the commit, it still acknowledges each request
	}
	return errs
}

func (c *Conn) open(begin Request, reqs, end []Request, errs []error) *transaction {
	c.seq++
	w := &transaction{begin: c.seq, window: window{first: c.seq + 1, errs: errs, answered: make([]bool, len(reqs)), left: len(reqs), take: func(_ int, m Message) {
		if c.echo != nil {
			c.echo(m)
		}
	}}}
	c.out = appendRequest(c.out[:0], begin, unix.NLM_F_REQUEST, c.seq)
	for _, r := range reqs {
		c.seq++
		c.out = appendRequest(c.out, r, unix.NLM_F_REQUEST|unix.NLM_F_ACK, c.seq)
	}
	for _, r := range end {
		c.seq++
		c.out = appendRequest(c.out, r, unix.NLM_F_REQUEST, c.seq)
	}
	return w
}

// transaction matches the answers of a transaction with its requests. The kernel answers begin only if it refuses the whole transaction.
type transaction struct {
	begin   uint32
	refused bool
	window
}

func (t *transaction) message(h header, payload []byte) error {
	if h.seq != t.begin || h.typ != unix.NLMSG_ERROR {
		return t.window.message(h, payload)
	}
	refusal, err := decodeError(h, payload)
	if err != nil {
		return err
	}
	if refusal == nil {
		return errors.New("read answer: the kernel acknowledged the beginning of a transaction")
	}
	for i := range t.errs {
		t.errs[i] = fmt.Errorf("transaction: %w", refusal)
	}
	t.left, t.refused = 0, true
	return nil
}
