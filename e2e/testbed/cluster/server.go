package cluster

import (
	"bufio"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Server answers every request with its name and the addresses that it saw.
type Server struct {
	Name  string
	Proto Protocol
	Port  uint16

	host    *Host
	silent  bool
	wg      sync.WaitGroup
	mu      sync.Mutex
	listen  []*os.File
	conns   map[*os.File]struct{}
	sources map[netip.Addr]int
	closed  bool
}

// ServeOption configures a server.
type ServeOption func(*serveOptions)

type serveOptions struct {
	name   string
	on     []netip.Addr
	silent bool
}

// As sets the server's name. The default is its host's name. The name must not contain spaces.
func As(name string) ServeOption { return func(o *serveOptions) { o.name = name } }

// Silent makes the server count requests without answering. Use it with a Sender, because a Conn requires an
// answer.
func Silent() ServeOption { return func(o *serveOptions) { o.silent = true } }

// On binds the server to one address instead of all addresses of the host.
func On(addr string) ServeOption {
	return func(o *serveOptions) { o.on = append(o.on, netip.MustParseAddr(addr)) }
}

// Serve starts an echo server on the host, in all its families. TCP and UDP bind to the wildcard address. SCTP
// binds to the host's own address, because an SCTP server announces every bound address to its clients, which then
// bypass NAT by using those addresses.
func (h *Host) Serve(t T, proto Protocol, port uint16, options ...ServeOption) *Server {
	t.Helper()
	s, err := h.Listen(proto, port, options...)
	if err != nil {
		t.Fatalf("%v", err)
	}
	atEnd(t, s.abort)
	return s
}

// atEnd runs fn at the end of the test, if t has a Cleanup method.
func atEnd(t T, fn func()) {
	if c, ok := t.(interface{ Cleanup(func()) }); ok {
		c.Cleanup(fn)
	}
}

// Listen is like Serve, but returns an error instead of failing a test.
func (h *Host) Listen(proto Protocol, port uint16, options ...ServeOption) (*Server, error) {
	var o serveOptions
	for _, option := range options {
		option(&o)
	}
	s := &Server{Name: h.Name, Proto: proto, Port: port, host: h, silent: o.silent,
		conns: map[*os.File]struct{}{}, sources: map[netip.Addr]int{}}
	if o.name != "" {
		s.Name = o.name
	}
	if len(o.on) == 0 {
		for _, f := range h.cluster.FamilyList() {
			addr := anywhere(f).Addr()
			if proto == SCTP {
				addr = h.Addr(f)
			}
			o.on = append(o.on, addr)
		}
	}
	fail := func(err error) (*Server, error) {
		s.shut(true)
		return nil, fmt.Errorf("%s: serve %s %d: %w", h.Name, proto, port, err)
	}
	for _, addr := range o.on {
		f, err := h.listen(proto, netip.AddrPortFrom(addr, port))
		if err != nil {
			return fail(err)
		}
		s.listen = append(s.listen, f)
	}
	if err := h.own(s); err != nil {
		return fail(err)
	}
	for _, f := range s.listen {
		if proto == UDP {
			s.wg.Go(func() { s.answerDatagrams(f) })
		} else {
			s.wg.Go(func() { s.accept(f) })
		}
	}
	return s, nil
}

func (h *Host) listen(proto Protocol, at netip.AddrPort) (*os.File, error) {
	fd := -1
	err := h.Do(func() (err error) {
		if fd, err = proto.socket(familyOf(at.Addr())); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return err
		}
		if proto == UDP {
			if at.Addr().Is4() {
				err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
			} else {
				err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
			}
			if err != nil {
				return err
			}
			// The default buffer has room for 277 datagrams, and hundreds of clients can send that many before
			// a busy machine runs the server. Without root, it keeps its default size.
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20)
		}
		if err := unix.Bind(fd, sockaddr(at)); err != nil {
			return fmt.Errorf("bind %s: %w", at, err)
		}
		if proto != UDP {
			return unix.Listen(fd, 4096)
		}
		return nil
	})
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return nil, err
	}
	return os.NewFile(uintptr(fd), fmt.Sprintf("%s %s", proto, at)), nil
}

func (s *Server) accept(listen *os.File) {
	raw, err := listen.SyscallConn()
	if err != nil {
		return
	}
	for {
		var fd int
		var from unix.Sockaddr
		var errAccept error
		err := raw.Read(func(l uintptr) bool {
			fd, from, errAccept = unix.Accept4(int(l), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
			return errAccept != unix.EAGAIN
		})
		if err != nil {
			return // closed
		}
		if errAccept != nil {
			// The client left before accept, or the process is out of file descriptors.
			time.Sleep(time.Millisecond)
			continue
		}
		local, _ := unix.Getsockname(fd)
		conn := os.NewFile(uintptr(fd), "accepted")
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			conn.Close()
			return
		}
		s.conns[conn] = struct{}{}
		s.wg.Go(func() { s.respond(conn, addrPort(from), addrPort(local)) })
		s.mu.Unlock()
	}
}

func (s *Server) respond(conn *os.File, from, at netip.AddrPort) {
	defer func() {
		s.mu.Lock()
		delete(s.conns, conn)
		s.mu.Unlock()
		conn.Close()
	}()
	in := bufio.NewReader(conn)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		answer := s.reply(line, from, at)
		if s.silent {
			continue
		}
		if _, err := conn.WriteString(answer); err != nil {
			return
		}
	}
}

func (s *Server) answerDatagrams(socket *os.File) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return
	}
	buf, oob := make([]byte, 64<<10), make([]byte, 256)
	for {
		var n, oobn int
		var from unix.Sockaddr
		var errRecv error
		err := raw.Read(func(fd uintptr) bool {
			n, oobn, _, from, errRecv = unix.Recvmsg(int(fd), buf, oob, 0)
			return errRecv != unix.EAGAIN
		})
		if err != nil {
			return // closed
		}
		if errRecv != nil {
			continue // an ICMP error about an earlier answer
		}
		at, reply := destination(oob[:oobn], s.Port)
		answer := s.reply(string(buf[:n]), addrPort(from), at)
		if s.silent {
			continue
		}
		_ = raw.Write(func(fd uintptr) bool {
			return unix.Sendmsg(int(fd), []byte(answer), reply, from, 0) != unix.EAGAIN
		})
	}
}

// destination returns the address to which a datagram was sent, and the control message for an answer from that
// address.
func destination(oob []byte, port uint16) (netip.AddrPort, []byte) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return netip.AddrPort{}, nil
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= 12:
			addr := [4]byte(m.Data[8:12]) // struct in_pktinfo: index, local, destination
			return netip.AddrPortFrom(netip.AddrFrom4(addr), port),
				unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: addr})
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= 16:
			addr := [16]byte(m.Data[:16])
			return netip.AddrPortFrom(netip.AddrFrom16(addr), port),
				unix.PktInfo6(&unix.Inet6Pktinfo{Addr: addr})
		}
	}
	return netip.AddrPort{}, nil
}

func (s *Server) reply(request string, from, at netip.AddrPort) string {
	s.mu.Lock()
	s.sources[from.Addr()]++
	s.mu.Unlock()
	return fmt.Sprintf("%s %s %s %s\n", strings.TrimSpace(request), s.Name, from, at)
}

// Requests returns the number of requests that the server has received.
func (s *Server) Requests() int {
	n := 0
	for _, k := range s.Sources() {
		n += k
	}
	return n
}

// Sources counts the requests by source address.
func (s *Server) Sources() map[netip.Addr]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.sources)
}

// StopListening refuses new connections and keeps serving open connections, like a draining server.
func (s *Server) StopListening() {
	s.mu.Lock()
	listen := s.listen
	s.listen = nil
	s.mu.Unlock()
	for _, f := range listen {
		f.Close()
	}
}

// Close stops the server and its connections, as if the program had exited.
func (s *Server) Close() {
	s.host.disown(s)
	s.shut(false)
}

// abort resets the connections to leave no state in the kernel.
func (s *Server) abort() {
	s.host.disown(s)
	s.shut(true)
}

func (s *Server) shut(reset bool) {
	s.StopListening()
	s.mu.Lock()
	s.closed = true
	for conn := range s.conns {
		if reset {
			resetOnClose(conn)
		}
		conn.Close() // its goroutine removes it from the list
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// resetOnClose makes Close send RST instead of FIN.
func resetOnClose(f *os.File) {
	if raw, err := f.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		})
	}
}

func familyOf(a netip.Addr) Family {
	if a.Is4() {
		return V4
	}
	return V6
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch a := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port))
	}
	return netip.AddrPort{}
}
