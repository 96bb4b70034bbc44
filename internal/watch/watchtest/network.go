package watchtest

import (
	"context"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Network connects clients to a server in the same process, so that a test in a synctest bubble controls the timing of faults
// and recoveries.
type Network struct {
	addr   net.Addr
	accept chan net.Conn
	closed chan struct{}
	stop   sync.Once

	mu    sync.Mutex
	fault error
	hole  chan struct{} // closed while packets are dropped
	conns []net.Conn
}

// dialTimeout is the timeout of the agent's dialer.
const dialTimeout = 10 * time.Second

// NewNetwork returns a network without faults. The server has the given address.
func NewNetwork(addr *net.TCPAddr) *Network {
	return &Network{addr: addr, accept: make(chan net.Conn), closed: make(chan struct{}), hole: make(chan struct{})}
}

// Dial connects a client.
func (n *Network) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	hole, err := n.handshake()
	if err != nil {
		return nil, err
	}
	client, server := net.Pipe()
	select {
	case n.accept <- &pipe{Conn: server, remote: n.addr, hole: hole}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-n.closed:
		return nil, syscall.ECONNREFUSED
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns = append(n.conns, client)
	return &pipe{Conn: client, remote: n.addr, hole: hole}, nil
}

// handshake retransmits the first packet until it arrives.
func (n *Network) handshake() (hole chan struct{}, err error) {
	for range dialTimeout / time.Second {
		n.mu.Lock()
		err, hole = n.fault, n.hole
		n.mu.Unlock()
		if err != nil || !dropped(hole) {
			return hole, err
		}
		time.Sleep(time.Second)
	}
	return nil, os.ErrDeadlineExceeded
}

// Fail closes all connections. New connections fail with this error.
func (n *Network) Fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fault = err
	for _, c := range n.conns {
		_ = c.Close()
	}
	n.conns = nil
}

// Drop drops all packets: connections stay open but carry nothing.
func (n *Network) Drop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.hole)
}

// Mend ends Fail and Drop. Connections that lost packets stay broken.
func (n *Network) Mend() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fault, n.hole = nil, make(chan struct{})
}

// Accept implements net.Listener.
func (n *Network) Accept() (net.Conn, error) {
	select {
	case c := <-n.accept:
		return c, nil
	case <-n.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (n *Network) Close() error {
	n.stop.Do(func() { close(n.closed) })
	return nil
}

// Addr implements net.Listener.
func (n *Network) Addr() net.Addr { return n.addr }

type pipe struct {
	net.Conn
	remote net.Addr
	hole   chan struct{}
}

func (p *pipe) RemoteAddr() net.Addr { return p.remote }

func (p *pipe) Read(b []byte) (int, error) {
	for {
		n, err := p.Conn.Read(b)
		if err != nil || !dropped(p.hole) {
			return n, err
		}
	}
}

func (p *pipe) Write(b []byte) (int, error) {
	if dropped(p.hole) {
		return len(b), nil
	}
	return p.Conn.Write(b)
}

func dropped(hole chan struct{}) bool {
	select {
	case <-hole:
		return true
	default:
		return false
	}
}
