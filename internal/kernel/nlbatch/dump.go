package nlbatch

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Dump makes one dump request and returns the payloads of its answer. ErrDumpInterrupted says that the table changed meanwhile:
// what was read is worthless, and the caller may try again. (Not every table of the kernel notices: IPVS does not.)
func (c *Conn) Dump(ctx context.Context, req Request) ([][]byte, error) {
	if err := c.ready(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	c.seq++
	c.out = appendRequest(c.out[:0], req, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, c.seq)
	if err := c.sock.send(c.out); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	c.stats.Dumps++
	d := &dump{seq: c.seq}
	for !d.done {
		err := ctx.Err()
		if err == nil {
			err = c.receive(ctx, d.message)
		}
		if err != nil {
			_ = c.Close() // the rest of the dump is still on its way
			return nil, err
		}
		d.keep()
	}
	return d.result()
}

// dump collects the messages of one dump.
type dump struct {
	seq         uint32
	done        bool
	interrupted bool
	refusal     error
	payloads    [][]byte
	kept        int // payloads before this one are copies, the others still lie in the receive buffer
}

func (d *dump) message(h header, payload []byte) error {
	if h.seq != d.seq || d.done {
		return fmt.Errorf("read dump: sequence number %d is not this dump's", h.seq)
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
		d.payloads = append(d.payloads, payload)
	}
	return nil
}

// keep copies what came with the last datagram, all of it at once.
func (d *dump) keep() {
	fresh := d.payloads[d.kept:]
	block := slices.Concat(fresh...)
	for i, p := range fresh {
		fresh[i], block = block[:len(p):len(p)], block[len(p):]
	}
	d.kept = len(d.payloads)
}

func (d *dump) result() ([][]byte, error) {
	if d.refusal != nil {
		return nil, d.refusal
	}
	if d.interrupted {
		return nil, ErrDumpInterrupted
	}
	return d.payloads, nil
}
