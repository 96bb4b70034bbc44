package forward

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Protocol is tcp or udp.
type Protocol string

// The supported protocols.
const (
	TCP Protocol = "tcp"
	UDP Protocol = "udp"
)

// Listen is the protocol, address and port to which clients connect. With port 0, the system chooses a free port, and
// Name distinguishes the listeners.
type Listen struct {
	Protocol Protocol
	At       netip.AddrPort
	Name     string
}

func (l Listen) String() string { return string(l.Protocol) + " " + l.At.String() }

// Limits apply to all listeners together.
type Limits struct {
	// Connections is the maximum number of open TCP connections. Further connections are reset.
	Connections int
	// Flows is the maximum number of UDP clients. A further client replaces the one that has sent nothing for the longest time.
	Flows int
	// Connect is the timeout for opening a connection to one endpoint. If an endpoint cannot be reached, up to
	// maxAttempts are tried.
	Connect time.Duration
	// FlowIdle is the time after which a UDP flow without datagrams in either direction expires.
	FlowIdle time.Duration
}

// Counts are the numbers of open TCP connections and UDP flows, and the failures since the start.
type Counts struct {
	Connections, Flows int64
	// Refused is the number of connections beyond the limit.
	Refused uint64
	// Replaced is the number of UDP flows that ended early because new clients needed their place.
	Replaced uint64
	// Failed is the number of connections and datagrams that reached no endpoint.
	Failed uint64
}

// quiet is how long a connection must carry no data before a closing forwarder ends it.
const quiet = time.Second

// Forwarder listens on any number of addresses and ports. Its methods are safe for concurrent use.
type Forwarder struct {
	limits                    Limits
	started                   time.Time
	quiet                     time.Duration
	openIn                    func(at netip.AddrPort, open func())
	connections               atomic.Int64
	refused, replaced, failed atomic.Uint64

	mu        sync.Mutex
	closed    bool
	listeners map[Listen]listener
	streams   map[*stream]struct{}
	open      openCounts // of streams
	running   sync.WaitGroup
	ctx       context.Context
	stop      context.CancelFunc

	flowsMu sync.RWMutex // a datagram of a known flow takes only the read lock
	flows   *recent[flowKey, *flow]
	flowing openCounts // of flows

	// own contains the addresses of the listeners, each as a Listen without a name. They are no endpoints: a connection to one would lead back to
	// the forwarder, and from there perhaps to the same endpoint, without end.
	own sync.Map
}

type listener interface {
	address() netip.AddrPort
	set(Target)
	balance() *balancer
	close() error
}

// New returns a Forwarder without listeners.
func New(limits Limits) *Forwarder {
	f := &Forwarder{
		limits: limits, started: time.Now(), quiet: quiet, openIn: func(_ netip.AddrPort, open func()) { open() },
		listeners: map[Listen]listener{}, streams: map[*stream]struct{}{}, flows: newRecent[flowKey, *flow](),
		open: openCounts{}, flowing: openCounts{},
	}
	f.ctx, f.stop = context.WithCancel(context.Background())
	return f
}

// OpenIn replaces how listening sockets are opened: in may call open in another network namespace. Call it before the
// first Set.
func (f *Forwarder) OpenIn(in func(at netip.AddrPort, open func())) { f.openIn = in }

var errClosed = errors.New("the forwarder is closed")

// Set forwards an address and port to a target, and returns the address and port. Call it again to change the target.
// Open TCP connections continue; UDP flows to endpoints that are no longer in the target end, and the next datagram
// starts a new flow.
func (f *Forwarder) Set(at Listen, to Target) (netip.AddrPort, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return netip.AddrPort{}, errClosed
	}
	if l, ok := f.listeners[at]; ok {
		l.set(to)
		return l.address(), nil
	}
	l, err := f.listen(at, to)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("listen at %s: %w", at, err)
	}
	f.listeners[at] = l
	f.own.Store(Listen{Protocol: at.Protocol, At: l.address()}, nil)
	return l.address(), nil
}

// pick picks an endpoint that has not been tried. It adds the endpoints at which the forwarder itself listens to tried.
func (f *Forwarder) pick(protocol Protocol, b *balancer, client netip.Addr, tried *[]netip.AddrPort) (to netip.AddrPort, header Header, ok bool) {
	for {
		to, header, ok = b.pick(client, time.Now(), *tried)
		if _, own := f.own.Load(Listen{Protocol: protocol, At: to}); !ok || !own {
			return to, header, ok
		}
		*tried = append(*tried, to)
	}
}

func (f *Forwarder) listen(at Listen, to Target) (_ listener, err error) {
	switch at.Protocol {
	case TCP:
		var l *net.TCPListener
		if f.openIn(at.At, func() { l, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at.At)) }); err != nil {
			return nil, err
		}
		return f.startTCP(l, at, to), nil
	case UDP:
		var l *net.UDPConn
		if f.openIn(at.At, func() { l, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at.At)) }); err != nil {
			return nil, err
		}
		return f.startUDP(l, at, to), nil
	default:
		return nil, fmt.Errorf("protocol %q cannot be forwarded in user space", at.Protocol)
	}
}

// Remove stops forwarding an address and port. Open TCP connections continue; UDP flows end.
func (f *Forwarder) Remove(at Listen) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	l, ok := f.listeners[at]
	if !ok {
		return nil
	}
	delete(f.listeners, at)
	f.own.Delete(Listen{Protocol: at.Protocol, At: l.address()})
	return l.close()
}

// Counts returns the current counts.
func (f *Forwarder) Counts() Counts {
	f.flowsMu.RLock()
	defer f.flowsMu.RUnlock()
	return Counts{f.connections.Load(), int64(f.flows.len()), f.refused.Load(), f.replaced.Load(), f.failed.Load()}
}

// Close stops listening. It ends connections that carry no data, waits up to the grace period for the others to end,
// and then closes them.
func (f *Forwarder) Close(grace time.Duration) {
	f.mu.Lock()
	f.closed = true
	for at, l := range f.listeners {
		_ = l.close() // the socket is closed even if close fails
		delete(f.listeners, at)
	}
	for s := range f.streams {
		s.endWhenQuiet()
	}
	f.mu.Unlock()
	ended := make(chan struct{})
	go func() { f.running.Wait(); close(ended) }()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
	}
	f.stop()
	<-ended
}

// opened registers a connection, so that Close can end it.
func (f *Forwarder) opened(s *stream) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.streams[s] = struct{}{}
	f.open.add(s.Connection, 1)
	if f.closed {
		s.endWhenQuiet()
	}
}

func (f *Forwarder) ended(s *stream) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.streams, s)
	f.open.add(s.Connection, -1)
}
