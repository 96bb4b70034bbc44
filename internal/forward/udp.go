package forward

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"
)

const maxDatagram = 65535

type udpListener struct {
	*Forwarder
	at       Listen
	balancer *balancer
	socket   *net.UDPConn
	closed   bool // guarded by flowsMu
}

type flowKey struct {
	listener *udpListener
	client   netip.AddrPort
}

func (k flowKey) connection(fl *flow) Connection {
	return Connection{Listen: k.listener.at, Client: k.client, Endpoint: fl.to}
}

// flow is the socket that one client's datagrams are sent from, so that replies can be matched to the client.
type flow struct {
	to      netip.AddrPort
	socket  *net.UDPConn
	tallies tallies
	last    atomic.Int64 // when the last datagram passed, as a time.Duration since the forwarder's start
}

// passed records that a datagram passes.
func (f *Forwarder) passed(fl *flow) { fl.last.Store(int64(time.Since(f.started))) }

// expires returns when a flow expires if no further datagram passes.
func (f *Forwarder) expires(fl *flow) time.Time {
	return f.started.Add(time.Duration(fl.last.Load()) + f.limits.FlowIdle)
}

func (f *Forwarder) startUDP(socket *net.UDPConn, at Listen, to Target) listener {
	l := &udpListener{Forwarder: f, at: at, balancer: newBalancer(to), socket: socket}
	f.running.Go(l.receive)
	return l
}

func (l *udpListener) address() netip.AddrPort { return l.socket.LocalAddr().(*net.UDPAddr).AddrPort() }

func (l *udpListener) balance() *balancer { return l.balancer }

func (l *udpListener) set(to Target) {
	if l.balancer.set(to) {
		l.endFlows(func(client netip.Addr, fl *flow) bool { return !to.has(fl.to) || !to.admits(client) })
	}
}

func (l *udpListener) close() error {
	l.flowsMu.Lock()
	l.closed = true
	l.flowsMu.Unlock()
	l.endFlows(func(netip.Addr, *flow) bool { return true })
	return l.socket.Close()
}

func (l *udpListener) endFlows(which func(client netip.Addr, fl *flow) bool) {
	l.flowsMu.Lock()
	defer l.flowsMu.Unlock()
	for key, fl := range l.flows.all {
		if key.listener == l && which(key.client.Addr(), fl) {
			l.end(key, fl)
		}
	}
}

// end ends a flow. The caller must hold flowsMu.
func (f *Forwarder) end(key flowKey, fl *flow) {
	f.flows.remove(key)
	f.flowing.add(key.connection(fl), -1)
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
			time.Sleep(errorPause) // the error may be an ICMP error about an earlier reply
			continue
		}
		l.forward(client, buffer[:n])
	}
}

func (l *udpListener) forward(client netip.AddrPort, datagram []byte) {
	fl := l.known(client)
	if fl == nil {
		fl = l.start(client) // no other goroutine starts this listener's flows
	}
	if fl != nil {
		fl.tallies.add(Traffic{PacketsIn: 1, BytesIn: uint64(len(datagram))})
		_, _ = fl.socket.Write(datagram) // the flow's goroutine also receives the error
	}
}

// known returns a client's flow, or nil. The flow cannot expire at the same time, because that requires the lock.
func (l *udpListener) known(client netip.AddrPort) *flow {
	l.flowsMu.RLock()
	defer l.flowsMu.RUnlock()
	fl, ok := l.flows.use(flowKey{l, client})
	if ok {
		l.passed(fl)
	}
	return fl
}

// start starts a client's flow, in place of the least recently used flow if there are too many. It returns nil if no
// endpoint is available.
func (l *udpListener) start(client netip.AddrPort) *flow {
	l.flowsMu.Lock()
	defer l.flowsMu.Unlock()
	if l.closed || !l.balancer.admits(client.Addr()) {
		return nil
	}
	to, _, ok := l.pick(UDP, l.balancer, client.Addr(), &[]netip.AddrPort{})
	if !ok {
		l.failed.Add(1)
		return nil
	}
	socket, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		l.failed.Add(1)
		return nil
	}
	fl := &flow{to: to, socket: socket, tallies: l.balancer.connected(client.Addr(), to, time.Now())}
	l.passed(fl)
	_ = socket.SetReadDeadline(l.expires(fl))
	if l.flows.len() >= l.limits.Flows {
		l.end(l.flows.oldest())
		l.replaced.Add(1)
	}
	key := flowKey{l, client}
	l.flows.put(key, fl)
	l.flowing.add(key.connection(fl), 1)
	l.running.Go(func() { l.reply(key, fl) })
	return fl
}

// reply forwards replies to a client until the flow ends or the endpoint refuses a datagram.
func (l *udpListener) reply(key flowKey, fl *flow) {
	buffer := make([]byte, maxDatagram)
	for {
		n, err := fl.socket.Read(buffer)
		if err != nil {
			if l.ended(key, fl, err) {
				return
			}
			continue
		}
		l.passed(fl)
		fl.tallies.add(Traffic{PacketsOut: 1, BytesOut: uint64(n)})
		_, _ = l.socket.WriteToUDPAddrPort(buffer[:n], key.client)
	}
}

// ended ends a flow whose socket returns an error, and reports whether the flow has ended. The socket's deadline may be older
// than the last datagram, because setting it for each datagram would cost more than the datagram; then it is set again.
func (l *udpListener) ended(key flowKey, fl *flow, why error) bool {
	idle := errors.Is(why, os.ErrDeadlineExceeded)
	if !idle && !errors.Is(why, net.ErrClosed) {
		l.balancer.failed(key.client.Addr(), fl.to)
	}
	l.flowsMu.Lock()
	defer l.flowsMu.Unlock()
	if !l.flows.has(key, fl) {
		return true
	}
	if at := l.expires(fl); idle && time.Now().Before(at) {
		_ = fl.socket.SetReadDeadline(at)
		return false
	}
	l.end(key, fl)
	return true
}
