package forward

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// Traffic counts what a listener or one of its endpoints has forwarded since the listener was opened. Bytes are the
// clients' data, without headers.
type Traffic struct {
	Connections                              uint64
	PacketsIn, PacketsOut, BytesIn, BytesOut uint64
}

func (t Traffic) plus(o Traffic) Traffic {
	return Traffic{
		t.Connections + o.Connections, t.PacketsIn + o.PacketsIn, t.PacketsOut + o.PacketsOut, t.BytesIn + o.BytesIn, t.BytesOut + o.BytesOut,
	}
}

// Served describes a listener.
type Served struct {
	Traffic
	Endpoints []ServedEndpoint // in the order of the target
}

// ServedEndpoint describes an endpoint of a listener. Open counts its TCP connections, and Flows its UDP flows.
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

// Inspect returns all listeners and connections. A connection may belong to a listener that has been removed.
func (f *Forwarder) Inspect(now time.Time) (served map[Listen]Served, connections []Connection) {
	f.mu.Lock()
	defer f.mu.Unlock()
	live := map[*tally]Traffic{} // of the streams' own tallies: a port that was opened again, and an endpoint that has returned, have new ones
	for s := range f.streams {
		for _, one := range s.tallies {
			live[one] = live[one].plus(s.carried())
		}
	}
	served = make(map[Listen]Served, len(f.listeners))
	for at, l := range f.listeners {
		one, clients := l.balance().inspect(now, live)
		for _, c := range clients {
			c.Listen = at
			connections = append(connections, c)
		}
		served[at] = one
	}
	add := func(c Connection, open, flows int) {
		connections = append(connections, c)
		at := served[c.Listen].Endpoints
		if i := slices.IndexFunc(at, func(e ServedEndpoint) bool { return e.Addr == c.Endpoint }); i >= 0 {
			at[i].Open, at[i].Flows = at[i].Open+open, at[i].Flows+flows
		}
	}
	for s := range f.streams {
		add(s.Connection, 1, 0)
	}
	f.flowsMu.Lock()
	defer f.flowsMu.Unlock()
	for key, fl := range f.flows.all {
		add(Connection{key.listener.at, key.client, fl.to, max(0, f.expires(fl).Sub(now))}, 0, 1)
	}
	return served, connections
}

// tally is the traffic of a listener or an endpoint, except for what open TCP connections have carried.
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
