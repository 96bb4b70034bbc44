package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Defaults for how long a client waits. Connecting and answering share one
// limit. All are overruled by Within.
const (
	DefaultWithin  = 3 * time.Second
	DefaultSilence = 1500 * time.Millisecond // MustTimeout; TCP sends its second SYN after 1 s
)

// Outcome says what became of a request. The differences are different bugs.
type Outcome string

const (
	Answered    Outcome = "answered"
	Refused     Outcome = "refused"     // TCP RST or ICMP port unreachable: nobody listens, or REJECT
	Timeout     Outcome = "timed out"   // silence: dropped, or the answer came back wrong
	Unreachable Outcome = "unreachable" // no route, no neighbour, no such protocol there
	Reset       Outcome = "reset"       // it existed, then the other side ended it
	Filtered    Outcome = "filtered"    // the client's own host dropped it, or IPv6 "prohibited"
	Failed      Outcome = "failed"      // anything else, such as a port already in use
)

// Reply is a server's answer.
type Reply struct {
	Server string         // its name
	Source netip.Addr     // where the server saw the request come from
	Port   uint16         // and its port
	Dest   netip.AddrPort // what the server's socket was asked at
	Local  netip.AddrPort // the client's own address
	Took   time.Duration
}

// Result is what became of one request.
type Result struct {
	Outcome   Outcome
	Reply     Reply // if Answered
	Err       error // if not
	Connected bool  // the connection stood (never for UDP unless Answered)
	Took      time.Duration
}

func (r Result) String() string {
	took := r.Took.Round(100 * time.Microsecond)
	if r.Outcome == Answered {
		return fmt.Sprintf("answered by %s (it saw %s) after %v", r.Reply.Server, r.Reply.Source, took)
	}
	return fmt.Sprintf("%s after %v (%v)", r.Outcome, took, r.Err)
}

// DialOption changes one request or connection.
type DialOption func(*dialOptions)

type dialOptions struct {
	within time.Duration
	from   netip.AddrPort
}

// Within is how long to wait at most.
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

// Probe sends one request over a new connection and says what became of it.
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

// Get sends one request over a new connection and wants an answer.
func (h *Host) Get(t T, proto Protocol, addr string, options ...DialOption) Reply {
	t.Helper()
	return h.must(t, Answered, proto, addr, optionsOf(options, DefaultWithin)).Reply
}

// MustRefuse wants a new connection to be refused: quickly, by a TCP reset or
// an ICMP error.
func (h *Host) MustRefuse(t T, proto Protocol, addr string, options ...DialOption) Result {
	t.Helper()
	return h.must(t, Refused, proto, addr, optionsOf(options, DefaultWithin))
}

// MustTimeout wants silence. It takes all its time (DefaultSilence).
func (h *Host) MustTimeout(t T, proto Protocol, addr string, options ...DialOption) Result {
	t.Helper()
	return h.must(t, Timeout, proto, addr, optionsOf(options, DefaultSilence))
}

func (h *Host) must(t T, want Outcome, proto Protocol, addr string, o dialOptions) Result {
	t.Helper()
	r := h.probe(proto, addr, o)
	if r.Outcome != want {
		t.Fatalf("%s -> %s %s: want %s, got %s", h.Name, addr, proto, want, r)
	}
	return r
}

// Await tries until it gets an answer.
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

// Spread makes n connections, one after the other, and counts the servers that
// answered.
func (h *Host) Spread(t T, n int, proto Protocol, addr string, options ...DialOption) map[string]int {
	t.Helper()
	servers := map[string]int{}
	for range n {
		servers[h.Get(t, proto, addr, options...).Server]++
	}
	return servers
}

// Conn is a connection that stays open. For UDP it is a socket that keeps its
// local port.
type Conn struct {
	Server string // who answered first
	Local  netip.AddrPort
	Remote netip.AddrPort
	Proto  Protocol

	host   *Host
	within time.Duration

	mu       sync.Mutex // one exchange at a time
	file     *os.File
	rest     []byte // read, but not used yet
	sent     uint64
	answered uint64
	late     uint64
}

// Open opens a connection and wants a first answer over it. It is closed at the
// end of the test, at the latest with the cluster.
func (h *Host) Open(t T, proto Protocol, addr string, options ...DialOption) *Conn {
	t.Helper()
	c, err := h.Dial(proto, addr, options...)
	if err != nil {
		t.Fatalf("%s -> %s %s: open a connection: %s (%v)", h.Name, addr, proto, outcomeOf(err), err)
	}
	atEnd(t, c.abort)
	return c
}

// Dial is Open without a test.
func (h *Host) Dial(proto Protocol, addr string, options ...DialOption) (*Conn, error) {
	o := optionsOf(options, DefaultWithin)
	start := time.Now()
	c, err := h.dial(proto, addr, o)
	if err != nil {
		return nil, err
	}
	r, err := c.ping(start.Add(o.within))
	if err != nil {
		c.Close()
		return nil, err
	}
	c.Server = r.Server
	return c, nil
}

func (h *Host) dial(proto Protocol, addr string, o dialOptions) (*Conn, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(o.within)
	var fd int
	err = h.Do(func() (err error) {
		fd, err = proto.socket(familyOf(to.Addr()))
		return err
	})
	if err != nil {
		return nil, err
	}
	file, err := connect(fd, proto, to, o.from, deadline)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	c := &Conn{Proto: proto, Remote: to, host: h, within: o.within, file: file}
	_ = control(file, func(fd int) error {
		local, err := unix.Getsockname(fd)
		c.Local = addrPort(local)
		return err
	})
	if err := h.own(c); err != nil {
		file.Close()
		return nil, err
	}
	return c, nil
}

// connect takes over the socket. The file waits in Go's network poller.
func connect(fd int, proto Protocol, to, from netip.AddrPort, deadline time.Time) (*os.File, error) {
	fail := func(err error) (*os.File, error) {
		unix.Close(fd)
		return nil, err
	}
	if proto != TCP {
		// UDP: report every ICMP error, not only "port unreachable". SCTP: be woken by them; else it depends on the moment at which
		// the error arrives whether it is ever seen.
		level, option := unix.IPPROTO_IP, unix.IP_RECVERR
		if to.Addr().Is6() {
			level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVERR
		}
		if err := unix.SetsockoptInt(fd, level, option, 1); err != nil {
			return fail(err)
		}
	}
	if from.Addr().IsValid() || from.Port() != 0 {
		if !from.Addr().IsValid() {
			from = netip.AddrPortFrom(anywhere(familyOf(to.Addr())).Addr(), from.Port())
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return fail(err)
		}
		if err := unix.Bind(fd, sockaddr(from)); err != nil {
			return fail(fmt.Errorf("bind %s: %w", from, err))
		}
	}
	err := unix.Connect(fd, sockaddr(to))
	if err != nil && err != unix.EINPROGRESS && err != unix.EINTR {
		return fail(err)
	}
	file := os.NewFile(uintptr(fd), fmt.Sprintf("%s %s", proto, to))
	if err == nil {
		return file, nil
	}
	if err := file.SetDeadline(deadline); err != nil {
		file.Close()
		return nil, err
	}
	raw, err := file.SyscallConn()
	if err == nil {
		var failure error
		err = raw.Write(func(fd uintptr) bool {
			number, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
			if err == nil && number != 0 {
				err = syscall.Errno(number)
			}
			if err != nil {
				failure = err
				return true
			}
			_, err = unix.Getpeername(int(fd))
			return err == nil // else woken too early
		})
		if err == nil {
			err = failure
		}
	}
	if err != nil {
		resetOnClose(file)
		file.Close()
		return nil, err
	}
	return file, nil
}

func control(f *os.File, fn func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var errFn error
	if err := raw.Control(func(fd uintptr) { errFn = fn(int(fd)) }); err != nil {
		return err
	}
	return errFn
}

// Ping sends the next number over the connection and waits for its answer.
func (c *Conn) Ping() (Reply, error) { return c.ping(time.Now().Add(c.within)) }

// MustPing wants an answer from the server that answered first.
func (c *Conn) MustPing(t T) Reply {
	t.Helper()
	r, err := c.Ping()
	switch {
	case err != nil:
		t.Fatalf("%s: %s (%v)", c, outcomeOf(err), err)
	case r.Server != c.Server:
		t.Fatalf("%s: answered by %s", c, r.Server)
	}
	return r
}

// Alive says whether the server that answered first still answers.
func (c *Conn) Alive() bool {
	r, err := c.Ping()
	return err == nil && r.Server == c.Server
}

// MustBeDead wants the connection to end: reset or closed, not just silent.
func (c *Conn) MustBeDead(t T) {
	t.Helper()
	r, err := c.Ping()
	if o := outcomeOf(err); o != Reset && o != Refused {
		t.Fatalf("%s: want it reset, got %s (%v, %v)", c, o, r, err)
	}
}

func (c *Conn) String() string {
	return fmt.Sprintf("connection %s -> %s %s with %s", c.host.Name, c.Remote, c.Proto, c.Server)
}

// ping is not interrupted by late answers to earlier numbers: it counts them.
func (c *Conn) ping(deadline time.Time) (Reply, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	start := time.Now()
	if err := c.file.SetDeadline(deadline); err != nil {
		return Reply{}, err
	}
	c.sent++
	number := strconv.FormatUint(c.sent, 10)
	if _, err := c.file.WriteString(number + "\n"); err != nil {
		c.forgetErrors()
		return Reply{}, fmt.Errorf("request: %w", err)
	}
	for {
		line, err := c.line()
		if err != nil {
			c.forgetErrors()
			return Reply{}, fmt.Errorf("answer: %w", err)
		}
		f := strings.Fields(line)
		if len(f) != 4 {
			return Reply{}, fmt.Errorf("answer: not understood: %q", line)
		}
		c.answered++
		if f[0] != number {
			c.late++
			continue
		}
		source, err := netip.ParseAddrPort(f[2])
		if err != nil {
			return Reply{}, fmt.Errorf("answer: %w", err)
		}
		dest, _ := netip.ParseAddrPort(f[3])
		return Reply{Server: f[1], Source: source.Addr(), Port: source.Port(), Dest: dest,
			Local: c.Local, Took: time.Since(start)}, nil
	}
}

func (c *Conn) line() (string, error) {
	buf := make([]byte, 64<<10) // the largest datagram
	for {
		if i := bytes.IndexByte(c.rest, '\n'); i >= 0 {
			line := string(c.rest[:i])
			c.rest = c.rest[i+1:]
			return line, nil
		}
		n, err := c.file.Read(buf)
		c.rest = append(c.rest, buf[:n]...)
		if err != nil {
			return "", err
		}
	}
}

// forgetErrors empties a UDP socket's queue of ICMP errors, or it would fill.
func (c *Conn) forgetErrors() {
	if c.Proto != UDP {
		return
	}
	_ = control(c.file, func(fd int) error {
		buf, oob := make([]byte, 64), make([]byte, 256)
		for {
			if _, _, _, _, err := unix.Recvmsg(fd, buf, oob, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT); err != nil {
				return err
			}
		}
	})
}

// Close ends the connection as a program does. It interrupts a Ping.
func (c *Conn) Close() {
	c.host.disown(c)
	c.file.Close()
}

// abort leaves nothing behind in the kernel.
func (c *Conn) abort() {
	resetOnClose(c.file)
	c.Close()
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
