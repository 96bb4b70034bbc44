package forward

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// errorPause is how long a listener pauses after an error, for example if the process is out of file descriptors.
const errorPause = 50 * time.Millisecond

// maxAttempts is the maximum number of endpoints that are tried for one client.
const maxAttempts = 4

type tcpListener struct {
	*Forwarder
	at       Listen
	balancer *balancer
	socket   *net.TCPListener
	closing  chan struct{}
}

func (f *Forwarder) startTCP(socket *net.TCPListener, at Listen, to Target) listener {
	l := &tcpListener{Forwarder: f, at: at, balancer: newBalancer(to), socket: socket, closing: make(chan struct{})}
	f.running.Go(l.accept)
	return l
}

func (l *tcpListener) address() netip.AddrPort { return l.socket.Addr().(*net.TCPAddr).AddrPort() }

func (l *tcpListener) set(to Target) { l.balancer.set(to) }

func (l *tcpListener) balance() *balancer { return l.balancer }

func (l *tcpListener) close() error {
	close(l.closing)
	return l.socket.Close()
}

func (l *tcpListener) accept() {
	for {
		client, err := l.socket.AcceptTCP()
		if err != nil {
			select {
			case <-l.closing:
				return
			case <-time.After(errorPause):
				continue
			}
		}
		if !l.balancer.admits(clientOf(client)) { // first, so that such clients take no place from others
			reset(client)
			continue
		}
		if l.connections.Add(1) > int64(l.limits.Connections) {
			l.connections.Add(-1)
			l.refused.Add(1)
			reset(client)
			continue
		}
		l.running.Go(func() {
			defer l.connections.Add(-1)
			l.pass(client)
		})
	}
}

func clientOf(conn *net.TCPConn) netip.Addr {
	return conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()
}

func (l *tcpListener) pass(client *net.TCPConn) {
	s := l.connect(client)
	if s == nil {
		l.failed.Add(1)
		reset(client)
		return
	}
	l.opened(s)
	defer l.ended(s)
	defer context.AfterFunc(l.ctx, s.reset)()
	s.run()
}

// connect connects to an endpoint, and sends the header. If that fails, it tries others, which no data of the client has
// reached either.
func (l *tcpListener) connect(client *net.TCPConn) *stream {
	from, at := client.RemoteAddr().(*net.TCPAddr).AddrPort(), client.LocalAddr().(*net.TCPAddr).AddrPort()
	var tried []netip.AddrPort
	for range maxAttempts {
		to, header, ok := l.pick(TCP, l.balancer, from.Addr(), &tried)
		if !ok {
			break
		}
		server, err := l.dial(to, header.of(from, at))
		if err == nil {
			return &stream{
				Connection: Connection{Listen: l.at, Client: from, Endpoint: to}, client: newSource(client), server: newSource(server), quiet: l.quiet,
				silent: map[*source]bool{}, tallies: l.balancer.connected(from.Addr(), to, time.Now()),
			}
		}
		tried = append(tried, to)
	}
	return nil
}

func (l *tcpListener) dial(to netip.AddrPort, header []byte) (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(l.ctx, l.limits.Connect)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	if len(header) > 0 {
		if _, err := conn.Write(header); err != nil {
			_ = conn.Close()
			return nil, err
		}
	}
	return conn.(*net.TCPConn), nil
}
