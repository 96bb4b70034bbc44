package forward

import (
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Target describes where a listener forwards its clients.
type Target struct {
	Endpoints []Endpoint
	// Affinity is how long a client stays with its endpoint after its last connection; 0 turns affinity off. Clients
	// whose addresses have the first AffinityBits bits in common share an endpoint.
	Affinity     time.Duration
	AffinityBits int
	// Header begins each TCP connection to an endpoint. Datagrams have none.
	Header Header
	// Clients are the ranges of the clients that are forwarded; nil means every client. Connections of others are reset, and
	// their datagrams ignored.
	Clients []netip.Prefix
}

// Endpoint gets a share of the clients in proportion to its weight. With weight 0, it gets no new ones.
type Endpoint struct {
	Addr   netip.AddrPort
	Weight uint32
}

// To returns a target with a single endpoint.
func To(addr netip.AddrPort) Target { return Target{Endpoints: []Endpoint{{addr, 1}}} }

func (t Target) equal(o Target) bool {
	return t.Affinity == o.Affinity && t.AffinityBits == o.AffinityBits && t.Header == o.Header && slices.Equal(t.Endpoints, o.Endpoints) &&
		(t.Clients == nil) == (o.Clients == nil) && slices.Equal(t.Clients, o.Clients)
}

func (t Target) has(addr netip.AddrPort) bool {
	return slices.ContainsFunc(t.Endpoints, func(e Endpoint) bool { return e.Addr == addr })
}

func (t Target) admits(client netip.Addr) bool {
	client = client.Unmap().WithZone("")
	return t.Clients == nil || slices.ContainsFunc(t.Clients, func(r netip.Prefix) bool { return r.Contains(client) })
}

// maxClients is the maximum number of clients whose endpoints a listener remembers. The least recently used is
// forgotten first.
const maxClients = 16384

// balancer picks endpoints by weighted round robin. An endpoint with twice the weight is picked twice as often, and its
// turns are spread evenly. Every turn adds each endpoint's weight to its credit; the endpoint with the most credit is
// picked, and pays the sum of all weights.
type balancer struct {
	mu      sync.Mutex
	target  Target
	credit  []int64 // in the order of target.Endpoints
	clients *recent[netip.Prefix, record]
	// total counts all traffic, and endpoints that of each endpoint in target.
	total     *tally
	endpoints map[netip.AddrPort]*tally
}

// record is the endpoint of a client with affinity.
type record struct {
	endpoint netip.AddrPort
	until    time.Time
}

func newBalancer(t Target) *balancer {
	b := &balancer{
		target: t, credit: make([]int64, len(t.Endpoints)), clients: newRecent[netip.Prefix, record](),
		total: &tally{}, endpoints: map[netip.AddrPort]*tally{},
	}
	b.countTarget()
	return b
}

// countTarget keeps a tally of each endpoint in the target, and of no others.
func (b *balancer) countTarget() {
	before := b.endpoints
	b.endpoints = make(map[netip.AddrPort]*tally, len(b.target.Endpoints))
	for _, e := range b.target.Endpoints {
		if b.endpoints[e.Addr] = before[e.Addr]; b.endpoints[e.Addr] == nil {
			b.endpoints[e.Addr] = &tally{}
		}
	}
}

// set replaces the target and reports whether it has changed. Remaining endpoints keep their credit, so that frequent
// changes do not favor the first endpoint.
func (b *balancer) set(t Target) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.target.equal(t) {
		return false
	}
	before := make(map[netip.AddrPort]int64, len(b.credit))
	for i, e := range b.target.Endpoints {
		before[e.Addr] = b.credit[i]
	}
	sum := int64(0)
	for _, e := range t.Endpoints {
		sum += int64(e.Weight)
	}
	b.target, b.credit = t, make([]int64, len(t.Endpoints))
	b.countTarget()
	for i, e := range t.Endpoints {
		b.credit[i] = min(max(before[e.Addr], -sum), sum) // the weights may have been larger
	}
	return true
}

func (b *balancer) admits(client netip.Addr) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.target.admits(client)
}

// pick returns an endpoint for a client, other than those that have been tried, and the header that the endpoint expects.
// It returns false if there is none.
func (b *balancer) pick(from netip.Addr, now time.Time, tried []netip.AddrPort) (netip.AddrPort, Header, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.target.Affinity > 0 {
		known, ok := b.clients.use(b.group(from))
		if ok && now.Before(known.until) && b.eligible(known.endpoint, tried) {
			return known.endpoint, b.target.Header, true
		}
	}
	best, sum := -1, int64(0)
	for i, e := range b.target.Endpoints {
		if e.Weight == 0 || slices.Contains(tried, e.Addr) {
			continue
		}
		sum += int64(e.Weight)
		if b.credit[i] += int64(e.Weight); best < 0 || b.credit[i] > b.credit[best] {
			best = i
		}
	}
	if best < 0 {
		return netip.AddrPort{}, 0, false
	}
	b.credit[best] -= sum
	return b.target.Endpoints[best].Addr, b.target.Header, true
}

func (b *balancer) eligible(addr netip.AddrPort, tried []netip.AddrPort) bool {
	return !slices.Contains(tried, addr) &&
		slices.ContainsFunc(b.target.Endpoints, func(e Endpoint) bool { return e.Addr == addr && e.Weight > 0 })
}

// connected counts a connection, and records the endpoint of a client with affinity. It returns the tallies of the
// connection.
func (b *balancer) connected(from netip.Addr, to netip.AddrPort, now time.Time) tallies {
	b.mu.Lock()
	defer b.mu.Unlock()
	counted := tallies{b.total, b.endpoints[to]}
	if counted[1] == nil { // the target has changed
		counted[1] = &tally{}
	}
	counted.add(Traffic{Connections: 1})
	if b.target.Affinity == 0 {
		return counted
	}
	b.clients.put(b.group(from), record{to, now.Add(b.target.Affinity)})
	if b.clients.len() > maxClients {
		oldest, _ := b.clients.oldest()
		b.clients.remove(oldest)
	}
	return counted
}

// served returns the traffic of the target.
func (b *balancer) served() Served {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := Served{Traffic: b.total.read(), Endpoints: make([]ServedEndpoint, len(b.target.Endpoints))}
	for i, e := range b.target.Endpoints {
		s.Endpoints[i] = ServedEndpoint{Endpoint: e, Traffic: b.endpoints[e.Addr].read()}
	}
	return s
}

// affinity returns the endpoints of clients with affinity, as connections at a listener.
func (b *balancer) affinity(at Listen, now time.Time) (clients []Connection) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.target.Affinity == 0 {
		return nil
	}
	for client, r := range b.clients.all {
		if now.Before(r.until) && b.eligible(r.endpoint, nil) {
			clients = append(clients, Connection{at, netip.AddrPortFrom(client.Addr(), 0), r.endpoint, r.until.Sub(now)})
		}
	}
	return clients
}

// failed forgets a client's endpoint after it has refused the client's datagrams.
func (b *balancer) failed(from netip.Addr, at netip.AddrPort) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if known, ok := b.clients.use(b.group(from)); ok && known.endpoint == at {
		b.clients.remove(b.group(from))
	}
}

// group returns the range of addresses that share an endpoint with a client.
func (b *balancer) group(from netip.Addr) netip.Prefix {
	from = from.Unmap().WithZone("")
	bits := b.target.AffinityBits
	if bits <= 0 || bits > from.BitLen() {
		bits = from.BitLen()
	}
	group, _ := from.Prefix(bits) // the number of bits is valid
	return group
}
