package forward

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// errorPause is how long a listener waits after an error, such as a lack of file descriptors.
const errorPause = 50 * time.Millisecond

// tcpListener forwards connections.
type tcpListener struct {
	*Forwarder
	socket        *net.TCPListener
	balancer      balancer
	proxyProtocol atomic.Bool
	closing       chan struct{}
}

func (f *Forwarder) startTCP(socket *net.TCPListener, to Service) listener {
	l := &tcpListener{Forwarder: f, socket: socket, closing: make(chan struct{})}
	l.set(to)
	f.running.Go(l.accept)
	return l
}

func (l *tcpListener) set(to Service) {
	l.balancer.set(to.Endpoints, to.Affinity)
	l.proxyProtocol.Store(to.ProxyProtocol)
}

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

// reset closes a connection with a RST, so that the client sees a refusal and not an empty answer.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// pass connects a client with an endpoint, and returns when both have finished.
func (l *tcpListener) pass(client *net.TCPConn) {
	endpoint, err := l.connect(client)
	if err != nil {
		l.failed.Add(1)
		reset(client)
		return
	}
	stop := context.AfterFunc(l.ctx, func() { reset(client); reset(endpoint) })
	defer stop()
	var directions sync.WaitGroup
	directions.Go(func() { copyHalf(endpoint, client) })
	directions.Go(func() { copyHalf(client, endpoint) })
	directions.Wait()
	_ = client.Close()
	_ = endpoint.Close()
}

// connect tries the endpoints until one accepts.
func (l *tcpListener) connect(client *net.TCPConn) (*net.TCPConn, error) {
	from := addrPortOf(client.RemoteAddr())
	var tried []netip.AddrPort
	err := error(errNoEndpoint)
	for {
		addr, ok := l.balancer.pick(from.Addr(), time.Now(), tried)
		if !ok {
			return nil, err
		}
		tried = append(tried, addr)
		var endpoint *net.TCPConn
		if endpoint, err = l.dial(addr, client); err == nil {
			return endpoint, nil
		}
		if l.ctx.Err() != nil {
			return nil, err
		}
	}
}

func (l *tcpListener) dial(addr netip.AddrPort, client *net.TCPConn) (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(l.ctx, l.limits.Connect)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return nil, err
	}
	endpoint := conn.(*net.TCPConn)
	if l.proxyProtocol.Load() {
		if _, err := io.WriteString(endpoint, proxyHeader(addrPortOf(client.RemoteAddr()), addrPortOf(client.LocalAddr()))); err != nil {
			_ = endpoint.Close()
			return nil, err
		}
	}
	return endpoint, nil
}

// proxyHeader returns the first line of the PROXY protocol.
func proxyHeader(client, server netip.AddrPort) string {
	family := "TCP4"
	if client.Addr().Is6() {
		family = "TCP6"
	}
	return fmt.Sprintf("PROXY %s %s %s %d %d\r\n", family, client.Addr(), server.Addr(), client.Port(), server.Port())
}

// copyHalf copies one direction. End of file ends only this direction; an error ends both.
func copyHalf(to, from *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil {
		reset(to)
		reset(from)
		return
	}
	_ = to.CloseWrite()
}

// addrPortOf converts an address of package net. It unmaps IPv4 addresses.
func addrPortOf(a net.Addr) netip.AddrPort {
	var at netip.AddrPort
	switch a := a.(type) {
	case *net.TCPAddr:
		at = a.AddrPort()
	case *net.UDPAddr:
		at = a.AddrPort()
	}
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}
