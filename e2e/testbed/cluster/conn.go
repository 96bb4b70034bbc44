package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Conn is a connection that stays open. For UDP, it is a socket that keeps its local port.
type Conn struct {
	Server string // the server that answered first
	Local  netip.AddrPort
	Remote netip.AddrPort
	Proto  Protocol

	host   *Host
	within time.Duration

	mu       sync.Mutex // serializes exchanges
	file     *os.File
	rest     []byte // read, but not used yet
	sent     uint64
	answered uint64
	late     uint64
}

// Open opens a connection and waits for a first answer. The connection is closed at the end of the test.
func (h *Host) Open(t T, proto Protocol, addr string, options ...DialOption) *Conn {
	t.Helper()
	c, err := h.Dial(proto, addr, options...)
	if err != nil {
		t.Fatalf("%s -> %s %s: open a connection: %s (%v)", h.Name, addr, proto, outcomeOf(err), err)
	}
	atEnd(t, c.abort)
	return c
}

// Dial is like Open, but returns an error instead of failing a test.
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
	for range 1000 {
		c, err := h.socket(proto, to, o, deadline)
		if err != nil {
			return nil, err
		}
		if proto == UDP && o.from.Port() == 0 && h.hasAsked(c.Local, to) {
			c.file.Close()
			continue
		}
		if err := h.own(c); err != nil {
			c.file.Close()
			return nil, err
		}
		return c, nil
	}
	return nil, fmt.Errorf("%s has sent UDP to %s from all its ports", h.Name, to)
}

func (h *Host) socket(proto Protocol, to netip.AddrPort, o dialOptions, deadline time.Time) (*Conn, error) {
	var fd int
	err := h.Do(func() (err error) {
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
	return c, nil
}

// hasAsked reports whether the host has sent UDP between these addresses before. IPVS and conntrack cannot
// distinguish a second socket with the same port from the first one. The kernel's random choice of a port must not
// determine whether a client is new.
func (h *Host) hasAsked(from, to netip.AddrPort) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	flow := [2]netip.AddrPort{from, to}
	_, asked := h.asked[flow]
	h.asked[flow] = struct{}{}
	return asked
}

// connect connects the socket, waiting in Go's network poller.
func connect(fd int, proto Protocol, to, from netip.AddrPort, deadline time.Time) (*os.File, error) {
	err := prepareSocket(fd, proto, to, from)
	if err == nil {
		err = unix.Connect(fd, sockaddr(to))
	}
	if err != nil && !errors.Is(err, unix.EINPROGRESS) && !errors.Is(err, unix.EINTR) {
		unix.Close(fd)
		return nil, err
	}
	file := os.NewFile(uintptr(fd), fmt.Sprintf("%s %s", proto, to))
	if err == nil {
		return file, nil
	}
	if err := file.SetDeadline(deadline); err != nil {
		file.Close()
		return nil, err
	}
	if err := awaitConnected(file); err != nil {
		resetOnClose(file)
		file.Close()
		return nil, err
	}
	return file, nil
}

func prepareSocket(fd int, proto Protocol, to, from netip.AddrPort) error {
	if proto != TCP {
		// Otherwise, UDP reports only "port unreachable", and SCTP reports an ICMP error only if it arrives at the
		// right moment.
		level, option := unix.IPPROTO_IP, unix.IP_RECVERR
		if to.Addr().Is6() {
			level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVERR
		}
		if err := unix.SetsockoptInt(fd, level, option, 1); err != nil {
			return err
		}
	}
	if !from.Addr().IsValid() {
		if from.Port() == 0 {
			return nil
		}
		from = netip.AddrPortFrom(anywhere(familyOf(to.Addr())).Addr(), from.Port())
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return err
	}
	if err := unix.Bind(fd, sockaddr(from)); err != nil {
		return fmt.Errorf("bind %s: %w", from, err)
	}
	return nil
}

func awaitConnected(file *os.File) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
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
		return err == nil // not connected yet: a spurious wake-up
	})
	if err == nil {
		err = failure
	}
	return err
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

// Ping sends the next number over the connection and waits for the answer.
func (c *Conn) Ping() (Reply, error) { return c.ping(time.Now().Add(c.within)) }

// MustPing fails the test unless the first server answers again.
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

// Alive reports whether the first server still answers.
func (c *Conn) Alive() bool {
	r, err := c.Ping()
	return err == nil && r.Server == c.Server
}

// MustBeDead fails the test unless the connection is reset or closed.
func (c *Conn) MustBeDead(t T) {
	t.Helper()
	r, err := c.Ping()
	if o := outcomeOf(err); o != Reset && o != Refused {
		t.Fatalf("%s: want a reset connection, got %s (%v, %v)", c, o, r, err)
	}
}

func (c *Conn) String() string {
	return fmt.Sprintf("connection %s -> %s %s with %s", c.host.Name, c.Remote, c.Proto, c.Server)
}

// ping skips and counts late replies to earlier pings.
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
			return Reply{}, fmt.Errorf("malformed answer: %q", line)
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

// forgetErrors drains a UDP socket's queue of ICMP errors before it fills up.
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

// Close closes the connection as a program would.
func (c *Conn) Close() {
	c.host.disown(c)
	c.file.Close()
}

// abort resets the connection to leave no state in the kernel.
func (c *Conn) abort() {
	resetOnClose(c.file)
	c.Close()
}
