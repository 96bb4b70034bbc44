package forward

import (
	"net/netip"
	"sync/atomic"
	"time"
)

// Traffic counts what a listener or one of its endpoints has forwarded since the listener was opened. Bytes are the
// clients' data, without headers.
type Traffic struct {
	Connections                              uint64
	PacketsIn, PacketsOut, BytesIn, BytesOut uint64
}

// Served describes a listener.
type Served struct {
	Traffic
	Endpoints []ServedEndpoint // in the order of the target
}

// ServedEndpoint describes an endpoint of a listener. Open counts its TCP connections, also those that were opened
// before the listener, and Flows its UDP flows.
type ServedEndpoint struct {
	Endpoint
	Traffic
	Open, Flows int
}

// Connection is an open TCP connection or a UDP flow. With client port 0, it is not a connection: it says which endpoint a
// client with affinity gets.
type Connection struct {
	Listen
	Client, Endpoint netip.AddrPort
	// Expires is how long it lasts without further traffic; 0 for an open TCP connection, which does not expire.
	Expires time.Duration
}

// Served returns all listeners. Its cost does not depend on the number of connections.
func (f *Forwarder) Served() map[Listen]Served {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.flowsMu.RLock()
	defer f.flowsMu.RUnlock()
	served := make(map[Listen]Served, len(f.listeners))
	for at, l := range f.listeners {
		s := l.balance().served()
		for i := range s.Endpoints {
			through := link{at, s.Endpoints[i].Addr}
			s.Endpoints[i].Open, s.Endpoints[i].Flows = f.open[through], f.flowing[through]
		}
		served[at] = s
	}
	return served
}

// Connections returns all connections. One may belong to a listener that has been removed.
func (f *Forwarder) Connections(now time.Time) (all []Connection) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for at, l := range f.listeners {
		all = append(all, l.balance().affinity(at, now)...)
	}
	for s := range f.streams {
		all = append(all, s.Connection)
	}
	f.flowsMu.RLock()
	defer f.flowsMu.RUnlock()
	for key, fl := range f.flows.all {
		c := key.connection(fl)
		c.Expires = max(0, f.expires(fl).Sub(now))
		all = append(all, c)
	}
	return all
}

// openCounts are the numbers of open connections through a listener to an endpoint. TCP connections outlive both.
type openCounts map[link]int

type link struct {
	listener Listen
	endpoint netip.AddrPort
}

func (o openCounts) add(c Connection, n int) {
	through := link{c.Listen, c.Endpoint}
	if o[through] += n; o[through] == 0 {
		delete(o, through)
	}
}

// tally is the traffic of a listener or an endpoint.
type tally struct {
	connections, packetsIn, packetsOut, bytesIn, bytesOut atomic.Uint64
}

func (t *tally) add(more Traffic) {
	t.connections.Add(more.Connections)
	t.packetsIn.Add(more.PacketsIn)
	t.packetsOut.Add(more.PacketsOut)
	t.bytesIn.Add(more.BytesIn)
	t.bytesOut.Add(more.BytesOut)
}

func (t *tally) read() Traffic {
	return Traffic{t.connections.Load(), t.packetsIn.Load(), t.packetsOut.Load(), t.bytesIn.Load(), t.bytesOut.Load()}
}

// tallies are those of a connection: its listener's and its endpoint's.
type tallies [2]*tally

func (t tallies) add(more Traffic) {
	for _, one := range t {
		one.add(more)
	}
}
