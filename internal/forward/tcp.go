package forward

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// errorPause is how long a listener pauses after an error, for example if the process is out of file descriptors.
const errorPause = 50 * time.Millisecond

type tcpListener struct {
	*Forwarder
	socket  *net.TCPListener
	to      atomic.Pointer[netip.AddrPort]
	closing chan struct{}
}

func (f *Forwarder) startTCP(socket *net.TCPListener, to netip.AddrPort) listener {
	l := &tcpListener{Forwarder: f, socket: socket, closing: make(chan struct{})}
	l.set(to)
	f.running.Go(l.accept)
	return l
}

func (l *tcpListener) set(to netip.AddrPort) { l.to.Store(&to) }

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

// reset closes a connection with a RST, so that the client receives an error instead of an empty response.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

func (l *tcpListener) pass(client *net.TCPConn) {
	server, err := l.connect()
	if err != nil {
		l.failed.Add(1)
		reset(client)
		return
	}
	stop := context.AfterFunc(l.ctx, func() { reset(client); reset(server) })
	defer stop()
	var directions sync.WaitGroup
	directions.Go(func() { copyHalf(server, client) })
	directions.Go(func() { copyHalf(client, server) })
	directions.Wait()
	_ = client.Close()
	_ = server.Close()
}

func (l *tcpListener) connect() (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(l.ctx, l.limits.Connect)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", l.to.Load().String())
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

// EOF closes only this direction; an error resets both connections.
func copyHalf(to, from *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil {
		reset(to)
		reset(from)
		return
	}
	_ = to.CloseWrite()
}
