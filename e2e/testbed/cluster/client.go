package cluster

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The default timeouts cover both connecting and waiting for the answer. Within overrides them.
const (
	DefaultWithin  = 3 * time.Second
	DefaultSilence = 1500 * time.Millisecond // for MustTimeout; TCP sends its second SYN after 1 s
)

// Outcome is the outcome of a request. Different outcomes indicate different bugs.
type Outcome string

// The outcomes of a request.
const (
	Answered    Outcome = "answered"
	Refused     Outcome = "refused"     // TCP RST or ICMP port unreachable: no listener, or REJECT
	Timeout     Outcome = "timed out"   // no answer: the request was dropped, or the answer was misrouted
	Unreachable Outcome = "unreachable" // no route, no neighbor, or the protocol is not supported there
	Reset       Outcome = "reset"       // the peer ended an established connection
	Filtered    Outcome = "filtered"    // the client's own host dropped it, or an ICMPv6 error says "prohibited"
	Failed      Outcome = "failed"      // anything else, such as a port already in use
)

// Is reports whether an outcome is the wanted one. In user space, no rule drops packets to a guarded port: it refuses or resets connections.
func (o Outcome) Is(want Outcome) bool {
	return o == want || want == Timeout && (o == Refused || o == Reset) && Userspace()
}

// Reply is a server's answer.
type Reply struct {
	Server string         // the server's name
	Source netip.Addr     // the source address that the server saw
	Port   uint16         // the source port that the server saw
	Dest   netip.AddrPort // the destination that the server's socket saw
	Local  netip.AddrPort // the client's own address
	Took   time.Duration
}

// Result is the result of one request.
type Result struct {
	Outcome   Outcome
	Reply     Reply // if Answered
	Err       error // if not Answered
	Connected bool  // the connection was established (for UDP, only if Answered)
	Took      time.Duration
}

func (r Result) String() string {
	took := r.Took.Round(100 * time.Microsecond)
	if r.Outcome == Answered {
		return fmt.Sprintf("answered by %s (it saw %s) after %v", r.Reply.Server, r.Reply.Source, took)
	}
	return fmt.Sprintf("%s after %v (%v)", r.Outcome, took, r.Err)
}

// DialOption configures a single request or connection.
type DialOption func(*dialOptions)

type dialOptions struct {
	within time.Duration
	from   netip.AddrPort
}

// Within sets the time limit.
func Within(d time.Duration) DialOption { return func(o *dialOptions) { o.within = d } }

// FromPort sends from a chosen local port.
func FromPort(port uint16) DialOption {
	return func(o *dialOptions) { o.from = netip.AddrPortFrom(o.from.Addr(), port) }
}

// FromAddr sends from a chosen local address.
func FromAddr(addr netip.Addr) DialOption {
	return func(o *dialOptions) { o.from = netip.AddrPortFrom(addr, o.from.Port()) }
}

func optionsOf(options []DialOption, within time.Duration) dialOptions {
	o := dialOptions{within: within}
	for _, option := range options {
		option(&o)
	}
	return o
}

// Probe sends one request over a new connection and returns the result.
func (h *Host) Probe(proto Protocol, addr string, options ...DialOption) Result {
	return h.probe(proto, addr, optionsOf(options, DefaultWithin))
}

func (h *Host) probe(proto Protocol, addr string, o dialOptions) Result {
	start := time.Now()
	c, err := h.dial(proto, addr, o)
	if err != nil {
		return Result{Outcome: outcomeOf(err), Err: err, Took: time.Since(start)}
	}
	defer c.Close()
	reply, err := c.ping(start.Add(o.within))
	took := time.Since(start)
	if err != nil {
		return Result{Outcome: outcomeOf(err), Err: err, Took: took, Connected: proto != UDP}
	}
	reply.Took = took
	return Result{Outcome: Answered, Reply: reply, Took: took, Connected: true}
}

// Get sends one request over a new connection and fails the test unless it is answered.
func (h *Host) Get(t T, proto Protocol, addr string, options ...DialOption) Reply {
	t.Helper()
	return h.must(t, Answered, proto, addr, optionsOf(options, DefaultWithin)).Reply
}

// MustRefuse fails the test unless a TCP reset or an ICMP error refuses a new connection.
func (h *Host) MustRefuse(t T, proto Protocol, addr string, options ...DialOption) Result {
	t.Helper()
	return h.must(t, Refused, proto, addr, optionsOf(options, DefaultWithin))
}

// MustTimeout fails the test if a new connection gets any answer.
func (h *Host) MustTimeout(t T, proto Protocol, addr string, options ...DialOption) Result {
	t.Helper()
	return h.must(t, Timeout, proto, addr, optionsOf(options, DefaultSilence))
}

func (h *Host) must(t T, want Outcome, proto Protocol, addr string, o dialOptions) Result {
	t.Helper()
	r := h.probe(proto, addr, o)
	if !r.Outcome.Is(want) {
		t.Fatalf("%s -> %s %s: want %s, got %s", h.Name, addr, proto, want, r)
	}
	return r
}

// Await retries until it gets an answer.
func (h *Host) Await(t T, within time.Duration, proto Protocol, addr string) Reply {
	t.Helper()
	var got Result
	Eventually(t, within, fmt.Sprintf("%s -> %s %s: an answer", h.Name, addr, proto), func() error {
		if got = h.Probe(proto, addr, Within(min(within, DefaultWithin))); got.Outcome != Answered {
			return errors.New(got.String())
		}
		return nil
	})
	return got.Reply
}

// Spread makes n connections in sequence and counts the servers that answered.
func (h *Host) Spread(t T, n int, proto Protocol, addr string, options ...DialOption) map[string]int {
	t.Helper()
	servers := map[string]int{}
	for range n {
		servers[h.Get(t, proto, addr, options...).Server]++
	}
	return servers
}

func outcomeOf(err error) Outcome {
	var number syscall.Errno
	switch {
	case err == nil:
		return Answered
	case errors.Is(err, os.ErrDeadlineExceeded):
		return Timeout
	case errors.Is(err, io.EOF):
		return Reset
	case errors.As(err, &number):
		switch number {
		case unix.ECONNREFUSED:
			return Refused
		case unix.ECONNRESET, unix.EPIPE, unix.ECONNABORTED, unix.ESHUTDOWN, unix.ENOTCONN:
			return Reset
		case unix.ETIMEDOUT:
			return Timeout
		case unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EHOSTDOWN, unix.ENONET, unix.ENETDOWN,
			unix.EPROTO, unix.ENOPROTOOPT, unix.EADDRNOTAVAIL:
			return Unreachable
		case unix.EPERM, unix.EACCES:
			return Filtered
		}
	}
	return Failed
}
