package nlbatch

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"
)

// Dump sends one dump request and returns the payloads of the response. ErrDumpInterrupted means that the table changed during the dump.
// The result is then unusable, and the caller may retry. The kernel cannot detect this for some tables, such as the IPVS table.
func (c *Conn) Dump(ctx context.Context, req Request) ([][]byte, error) {
	var all copies
	if err := c.Walk(ctx, req, all.keep); err != nil {
		return nil, err
	}
	return all.payloads, nil
}

// Walk sends one dump request and calls visit for each payload. A payload is valid only during the call, because the response may be too
// large to keep in memory. The kernel waits for the visits, so they may be slow and use other connections. The walk ends with visit's first
// error. If it returns ErrDumpInterrupted, some entries may not have been visited.
func (c *Conn) Walk(ctx context.Context, req Request, visit func(payload []byte) error) error {
	if err := c.ready(ctx); err != nil {
		return fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	c.seq++
	c.out = appendRequest(c.out[:0], req, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, c.seq)
	if err := c.sock.send(c.out); err != nil {
		_ = c.Close()
		return fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	c.stats.Dumps++
	d := &dump{seq: c.seq, visit: visit}
	for !d.done {
		err := ctx.Err()
		if err == nil {
			err = c.receive(ctx, d.message)
		}
		if err != nil {
			_ = c.Close() // the rest of the dump is unread
			return err
		}
	}
	return d.result()
}

type dump struct {
	seq         uint32
	visit       func([]byte) error
	done        bool
	interrupted bool
	refusal     error
}

func (d *dump) message(h header, payload []byte) error {
	if h.seq != d.seq || d.done {
		return fmt.Errorf("read dump: sequence number %d does not match this dump", h.seq)
	}
	if h.flags&unix.NLM_F_DUMP_INTR != 0 {
		d.interrupted = true
	}
	switch h.typ {
	case unix.NLMSG_NOOP:
	case unix.NLMSG_DONE, unix.NLMSG_ERROR:
		d.done = true
		if h.typ == unix.NLMSG_DONE && len(payload) == 0 {
			return nil
		}
		refusal, err := decodeError(h, payload)
		if err != nil {
			return err
		}
		d.refusal = refusal
	default:
		return d.visit(payload)
	}
	return nil
}

func (d *dump) result() error {
	if d.refusal != nil {
		return d.refusal
	}
	if d.interrupted {
		return ErrDumpInterrupted
	}
	return nil
}

// copies contains copies of visited payloads. One allocation holds several of them.
type copies struct {
	payloads [][]byte
	block    []byte
}

const blockSize = 32 << 10 // about the size of one datagram

func (c *copies) keep(payload []byte) error {
	if cap(c.block)-len(c.block) < len(payload) {
		c.block = make([]byte, 0, max(blockSize, len(payload)))
	}
	at := len(c.block)
	c.block = append(c.block, payload...)
	c.payloads = append(c.payloads, c.block[at:len(c.block):len(c.block)])
	return nil
}
