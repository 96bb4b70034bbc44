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

// flow is the socket that one client's datagrams are sent from, so that replies can be matched to the client.
type flow struct {
	to      netip.AddrPort
	socket  *net.UDPConn
	tallies tallies
	expires atomic.Pointer[time.Time]
}

// renew lets a flow last for a while.
func (fl *flow) renew(idle time.Duration) {
	at := time.Now().Add(idle)
	fl.expires.Store(&at)
	_ = fl.socket.SetReadDeadline(at)
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
		if fl := l.flowOf(client); fl != nil {
			fl.renew(l.limits.FlowIdle)
			fl.tallies.add(Traffic{PacketsIn: 1, BytesIn: uint64(n)})
			_, _ = fl.socket.Write(buffer[:n]) // the flow's goroutine also receives the error
		}
	}
}

// flowOf returns a client's flow. If there is none, it starts one, in place of the least recently used flow if there are
// too many. It returns nil if no endpoint is available.
func (l *udpListener) flowOf(client netip.AddrPort) *flow {
	l.flowsMu.Lock()
	defer l.flowsMu.Unlock()
	key := flowKey{l, client}
	if fl, ok := l.flows.use(key); ok {
		return fl
	}
	if l.closed || !l.balancer.admits(client.Addr()) {
		return nil
	}
	to, _, ok := l.balancer.pick(client.Addr(), time.Now(), nil)
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
	fl.renew(l.limits.FlowIdle)
	if l.flows.len() >= l.limits.Flows {
		l.end(l.flows.oldest())
		l.replaced.Add(1)
	}
	l.flows.put(key, fl)
	l.running.Go(func() { l.reply(key, fl) })
	return fl
}

// reply forwards replies to a client until the flow ends or the endpoint refuses a datagram.
func (l *udpListener) reply(key flowKey, fl *flow) {
	buffer := make([]byte, maxDatagram)
	for {
		n, err := fl.socket.Read(buffer)
		if err != nil {
			l.expired(key, fl, err)
			return
		}
		fl.renew(l.limits.FlowIdle)
		fl.tallies.add(Traffic{PacketsOut: 1, BytesOut: uint64(n)})
		_, _ = l.socket.WriteToUDPAddrPort(buffer[:n], key.client)
	}
}

func (l *udpListener) expired(key flowKey, fl *flow, why error) {
	if !errors.Is(why, os.ErrDeadlineExceeded) && !errors.Is(why, net.ErrClosed) {
		l.balancer.failed(key.client.Addr(), fl.to)
	}
	l.flowsMu.Lock()
	defer l.flowsMu.Unlock()
	if l.flows.has(key, fl) {
		l.end(key, fl)
	}
}
