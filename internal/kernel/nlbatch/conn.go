package nlbatch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Request is one netlink request. The methods of Conn add NLM_F_REQUEST and the flags that they need (ACK, DUMP) to Flags.
type Request struct {
	Type    uint16
	Flags   uint16
	Payload []byte
}

// Message is one response from the kernel, without its netlink header.
type Message struct {
	Type    uint16
	Payload []byte
}

// Stats counts requests to the kernel.
type Stats struct {
	Requests uint64 // excluding dumps
	Sends    uint64 // system calls that sent them
	Dumps    uint64
}

// defaultTimeout bounds each wait for a response. The kernel has processed the request when the send returns, so its response is normally
// available immediately.
const defaultTimeout = 5 * time.Second

// Conn is a netlink socket. It is not safe for concurrent use.
type Conn struct {
	dial  func() (socket, error)
	sock  socket // nil after a failure until the next use
	seq   uint32
	in    []byte
	out   []byte
	stats Stats
	echo  func(Message)
}

// Dial opens a socket of a netlink protocol (unix.NETLINK_ROUTE, ...) in the network namespace of the calling thread.
func Dial(protocol int) (*Conn, error) { return dial(protocol, openSocket) }

// DialStrict is like Dial, but the kernel uses the fields of a dump's request as a filter. Kernels before 4.20 send everything.
func DialStrict(protocol int) (*Conn, error) { return dial(protocol, openStrictSocket) }

func dial(protocol int, open func(int) (socket, error)) (*Conn, error) {
	c := &Conn{dial: func() (socket, error) { return open(protocol) }}
	if err := c.connect(); err != nil {
		return nil, err
	}
	return c, nil
}

// Close closes the socket. A closed Conn opens a new socket on its next use.
func (c *Conn) Close() error {
	if c.sock == nil {
		return nil
	}
	err := c.sock.close()
	c.sock = nil
	return err
}

// Stats returns the counts since Dial.
func (c *Conn) Stats() Stats { return c.stats }

// OnEcho sets a function for the messages with which the kernel answers a Transaction in addition to acknowledgments, because a request has
// NLM_F_ECHO. A payload is valid only during the call.
func (c *Conn) OnEcho(take func(Message)) { c.echo = take }

// Do sends the requests in order and returns an error or nil for each. A failed request does not stop the later ones; a failed connection
// does. Errors from the kernel have the type *Error.
func (c *Conn) Do(ctx context.Context, reqs []Request) []error {
	return c.all(ctx, reqs, ackCost, func(int, Message) {})
}

// Get sends requests, other than dumps, and returns the messages of each response.
func (c *Conn) Get(ctx context.Context, reqs []Request) ([][]Message, []error) {
	answers := make([][]Message, len(reqs))
	errs := c.all(ctx, reqs, answerCost, func(i int, m Message) {
		m.Payload = append([]byte(nil), m.Payload...)
		answers[i] = append(answers[i], m)
	})
	return answers, errs
}

func (c *Conn) all(ctx context.Context, reqs []Request, cost int, take func(int, Message)) []error {
	errs := make([]error, len(reqs))
	for from := 0; from < len(reqs); {
		if err := c.ready(ctx); err != nil {
			notSent(errs[from:], err)
			break
		}
		to := from + chunk(reqs[from:], cost, c.sock.budget())
		err := c.exchange(ctx, reqs[from:to], errs[from:to], func(i int, m Message) { take(from+i, m) })
		if err != nil {
			_ = c.Close() // the responses are out of sync; report the first error
			notSent(errs[to:], err)
			break
		}
		from = to
	}
	return errs
}

func (c *Conn) ready(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return c.connect()
}

func (c *Conn) connect() error {
	if c.sock != nil {
		return nil
	}
	sock, err := c.dial()
	if err != nil {
		return err
	}
	c.sock = sock
	return nil
}

func notSent(errs []error, cause error) {
	for i := range errs {
		errs[i] = fmt.Errorf("%w: %w", ErrNotSent, cause)
	}
}

// exchange sends one batch and collects the responses. It requests an acknowledgment only of the last request. The kernel
// handles requests in order, and reports failures even if it need not acknowledge success, so each earlier request without a
// response has succeeded. An error means that the connection is unusable.
func (c *Conn) exchange(ctx context.Context, reqs []Request, errs []error, take func(int, Message)) error {
	first := c.seq + 1
	c.out = c.out[:0]
	for i, r := range reqs {
		c.seq++
		flags := uint16(unix.NLM_F_REQUEST)
		if i == len(reqs)-1 {
			flags |= unix.NLM_F_ACK
		}
		c.out = appendRequest(c.out, r, flags, c.seq)
	}
	if err := c.sock.send(c.out); err != nil {
		notSent(errs, err)
		return err
	}
	c.stats.Requests += uint64(len(reqs))
	c.stats.Sends++
	w := &window{first: first, errs: errs, answered: make([]bool, len(reqs)), left: len(reqs), lastOnly: true, take: take}
	for w.left > 0 {
		if err := c.receive(ctx, w.message); err != nil {
			w.giveUp(err)
			return err
		}
	}
	return nil
}

// window matches responses with the requests of one send.
type window struct {
	first    uint32
	errs     []error
	answered []bool
	left     int
	// lastOnly is true if only the last request is acknowledged.
	lastOnly bool
	take     func(int, Message)
}

func (w *window) message(h header, payload []byte) error {
	i := h.seq - w.first // wraps like the kernel's sequence numbers
	if i >= uint32(len(w.answered)) || w.answered[i] {
		return fmt.Errorf("read answer: sequence number %d matches no open request", h.seq)
	}
	switch h.typ {
	case unix.NLMSG_NOOP:
	case unix.NLMSG_ERROR:
		refusal, err := decodeError(h, payload)
		if err != nil {
			return err
		}
		w.errs[i] = refusal
		w.answered[i] = true
		if w.left--; w.lastOnly && int(i) == len(w.answered)-1 {
			w.left = 0
		}
	default:
		w.take(int(i), Message{Type: h.typ, Payload: payload})
	}
	return nil
}

func (w *window) giveUp(cause error) {
	for i, ok := range w.answered {
		if !ok {
			w.errs[i] = fmt.Errorf("%w: %w", errOutcomeUnknown, cause)
		}
	}
}

// receive reads one datagram and passes on its messages, which are valid only during the call.
func (c *Conn) receive(ctx context.Context, handle func(header, []byte) error) error {
	if most := maxDump + cap(c.out); len(c.in) < most {
		c.in = make([]byte, most)
	}
	n, err := c.sock.receive(c.in, func() time.Time {
		deadline := time.Now().Add(defaultTimeout)
		if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
			deadline = d
		}
		return deadline
	})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("wait for answer: %w", err)
	}
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	return eachMessage(c.in[:n], handle)
}
