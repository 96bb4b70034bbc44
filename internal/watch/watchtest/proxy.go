package watchtest

import (
	"net"
	"sync"
	"testing"
)

// Proxy is a TCP proxy that can turn into a black hole: connections stay open but carry no data in either direction.
type Proxy struct {
	listener net.Listener
	target   string
	mu       sync.Mutex
	hole     chan struct{} // closed while the proxy is a black hole
	conns    []net.Conn
	refuse   bool
}

// NewProxy starts a proxy that forwards connections to the target.
func NewProxy(t *testing.T, target string) *Proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{listener: l, target: target, hole: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.serve(c)
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
		p.closeAll()
	})
	return p
}

// URL returns the address for clients.
func (p *Proxy) URL() string { return "https://" + p.listener.Addr().String() }

func (p *Proxy) serve(client net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, client)
	if p.refuse {
		_ = client.Close()
		return
	}
	select {
	case <-p.hole:
		return // accepted, but not forwarded
	default:
	}
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		_ = client.Close()
		return
	}
	p.conns = append(p.conns, server)
	hole := p.hole
	for _, pair := range [][2]net.Conn{{client, server}, {server, client}} {
		go func() {
			buffer := make([]byte, 32<<10)
			for {
				n, err := pair[0].Read(buffer)
				select {
				case <-hole:
					if err != nil {
						return
					}
					continue // dropped
				default:
				}
				if _, werr := pair[1].Write(buffer[:n]); err != nil || werr != nil {
					_ = pair[0].Close()
					_ = pair[1].Close()
					return
				}
			}
		}()
	}
}

// BlackHole drops all data on existing and new connections.
func (p *Proxy) BlackHole() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.hole)
}

// Open forwards new connections. Existing connections stay broken.
func (p *Proxy) Open() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hole, p.refuse = make(chan struct{}), false
}

// CutOff closes existing and new connections.
func (p *Proxy) CutOff() {
	p.mu.Lock()
	p.refuse = true
	p.mu.Unlock()
	p.closeAll()
}

func (p *Proxy) closeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}
