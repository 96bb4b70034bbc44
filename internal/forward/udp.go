package forward

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"
)

// maxDatagram is the largest UDP payload.
const maxDatagram = 65535

var errNoEndpoint = errors.New("no endpoint")

// udpListener forwards datagrams. Each client has its own socket to the endpoint, which receives the replies.
type udpListener struct {
	*Forwarder
	socket   *net.UDPConn
	balancer balancer

	mu     sync.Mutex
	closed bool
	known  map[netip.AddrPort]*flow
}

// flow is the socket of one client to its endpoint.
type flow struct {
	endpoint netip.AddrPort
	socket   *net.UDPConn
}

func (f *Forwarder) startUDP(socket *net.UDPConn, to Service) listener {
	l := &udpListener{Forwarder: f, socket: socket, known: map[netip.AddrPort]*flow{}}
	l.set(to)
	f.running.Go(l.receive)
	return l
}

// set replaces the endpoints. Flows to removed endpoints end, so the next datagram of their clients goes to another one.
func (l *udpListener) set(to Service) {
	l.balancer.set(to.Endpoints, to.Affinity)
	l.mu.Lock()
	defer l.mu.Unlock()
	for client, fl := range l.known {
		if !l.balancer.has(fl.endpoint) {
			l.forget(client, fl)
		}
	}
}

func (l *udpListener) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for client, fl := range l.known {
		l.forget(client, fl)
	}
	return l.socket.Close()
}

// forget ends a flow. Its goroutine then sees the closed socket and returns. The caller holds mu.
func (l *udpListener) forget(client netip.AddrPort, fl *flow) {
	if l.known[client] == fl {
		delete(l.known, client)
		l.flows.Add(-1)
	}
	_ = fl.socket.Close()
}

func (l *udpListener) receive() {
	buffer := make([]byte, maxDatagram)
	for {
		n, client, err := l.socket.ReadFromUDPAddrPort(buffer)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			time.Sleep(errorPause) // such as an ICMP error about an earlier reply
			continue
		}
		fl, err := l.flowOf(client)
		if err != nil {
			continue
		}
		_ = fl.socket.SetReadDeadline(time.Now().Add(l.limits.FlowIdle))
		_, _ = fl.socket.Write(buffer[:n]) // the goroutine of the flow sees the refusal of an endpoint
	}
}

// flowOf returns the flow of a client, and creates it if necessary.
func (l *udpListener) flowOf(client netip.AddrPort) (*flow, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if fl, ok := l.known[client]; ok {
		return fl, nil
	}
	if l.closed {
		return nil, net.ErrClosed
	}
	addr, ok := l.balancer.pick(client.Addr().Unmap(), time.Now(), nil)
	if !ok {
		l.failed.Add(1)
		return nil, errNoEndpoint
	}
	if l.flows.Add(1) > int64(l.limits.Flows) {
		l.flows.Add(-1)
		l.refused.Add(1)
		return nil, errors.New("too many flows")
	}
	socket, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(addr))
	if err != nil {
		l.flows.Add(-1)
		l.failed.Add(1)
		return nil, err
	}
	fl := &flow{addr, socket}
	l.known[client] = fl
	l.running.Go(func() { l.reply(client, fl) })
	return fl, nil
}

// reply forwards the datagrams of an endpoint to the client. It returns when the flow ends or expires, or the endpoint refuses a datagram.
func (l *udpListener) reply(client netip.AddrPort, fl *flow) {
	buffer := make([]byte, maxDatagram)
	_ = fl.socket.SetReadDeadline(time.Now().Add(l.limits.FlowIdle))
	for {
		n, err := fl.socket.Read(buffer)
		if err != nil {
			break
		}
		_ = fl.socket.SetReadDeadline(time.Now().Add(l.limits.FlowIdle))
		_, _ = l.socket.WriteToUDPAddrPort(buffer[:n], client)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget(client, fl)
}
