package forward

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"
)

const maxDatagram = 65535

// udpListener opens one socket to the destination per client, so that replies can be matched to clients.
type udpListener struct {
	*Forwarder
	socket *net.UDPConn

	mu     sync.Mutex
	to     netip.AddrPort
	closed bool
	known  map[netip.AddrPort]*net.UDPConn
}

func (f *Forwarder) startUDP(socket *net.UDPConn, to netip.AddrPort) listener {
	l := &udpListener{Forwarder: f, socket: socket, known: map[netip.AddrPort]*net.UDPConn{}}
	l.set(to)
	f.running.Go(l.receive)
	return l
}

func (l *udpListener) set(to netip.AddrPort) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.to != to {
		l.forgetAll()
	}
	l.to = to
}

func (l *udpListener) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.forgetAll()
	return l.socket.Close()
}

func (l *udpListener) forgetAll() {
	for client, flow := range l.known {
		l.forget(client, flow)
	}
}

// forget ends a flow. The caller must hold mu.
func (l *udpListener) forget(client netip.AddrPort, flow *net.UDPConn) {
	if l.known[client] == flow {
		delete(l.known, client)
		l.flows.Add(-1)
	}
	_ = flow.Close()
}

func (l *udpListener) receive() {
	buffer := make([]byte, maxDatagram)
	for {
		n, client, err := l.socket.ReadFromUDPAddrPort(buffer)
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			time.Sleep(errorPause) // the error may be an ICMP error about an earlier reply
			continue
		}
		flow, err := l.flowOf(client)
		if err != nil {
			continue
		}
		_ = flow.SetReadDeadline(time.Now().Add(l.limits.FlowIdle))
		_, _ = flow.Write(buffer[:n]) // the flow's goroutine also receives the error
	}
}

func (l *udpListener) flowOf(client netip.AddrPort) (*net.UDPConn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if flow, ok := l.known[client]; ok {
		return flow, nil
	}
	if l.closed {
		return nil, net.ErrClosed
	}
	if l.flows.Add(1) > int64(l.limits.Flows) {
		l.flows.Add(-1)
		l.refused.Add(1)
		return nil, errors.New("too many flows")
	}
	flow, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(l.to))
	if err != nil {
		l.flows.Add(-1)
		l.failed.Add(1)
		return nil, err
	}
	l.known[client] = flow
	l.running.Go(func() { l.reply(client, flow) })
	return flow, nil
}

// reply forwards replies to a client until the flow ends or the destination refuses a datagram.
func (l *udpListener) reply(client netip.AddrPort, flow *net.UDPConn) {
	buffer := make([]byte, maxDatagram)
	_ = flow.SetReadDeadline(time.Now().Add(l.limits.FlowIdle))
	for {
		n, err := flow.Read(buffer)
		if err != nil {
			break
		}
		_ = flow.SetReadDeadline(time.Now().Add(l.limits.FlowIdle))
		_, _ = l.socket.WriteToUDPAddrPort(buffer[:n], client)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget(client, flow)
}
