package forward

import (
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Endpoint is a destination of connections.
type Endpoint struct {
	Addr netip.AddrPort
	// Weight is the share of new clients. An endpoint with weight 0 keeps its clients and gets no new ones.
	Weight int
}

// maxSticky is the number of clients that a balancer remembers.
const maxSticky = 1 << 16

// balancer chooses an endpoint for each client: its previous one, or the next one by weighted round robin.
type balancer struct {
	mu        sync.Mutex
	endpoints []Endpoint
	// credit of each endpoint. It grows by the weight in each round. The endpoint with the most credit gets the next client.
	credit []int
	// affinity is how long a client keeps its endpoint after its last connection; 0 disables affinity.
	affinity time.Duration
	sticky   map[netip.Addr]choice
}

// choice is the endpoint of a client, with the time at which it expires.
type choice struct {
	endpoint netip.AddrPort
	until    time.Time
}

// set replaces the endpoints. A client keeps its endpoint if that still exists and has a weight.
func (b *balancer) set(endpoints []Endpoint, affinity time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.endpoints, endpoints) {
		b.endpoints, b.credit = slices.Clone(endpoints), make([]int, len(endpoints))
	}
	if b.affinity = affinity; affinity == 0 {
		b.sticky = nil
	}
}

// has reports whether an endpoint exists, with any weight.
func (b *balancer) has(addr netip.AddrPort) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.endpoints, func(e Endpoint) bool { return e.Addr == addr })
}

// pick returns an endpoint for a client, except those in tried. It returns false if there is none.
func (b *balancer) pick(client netip.Addr, now time.Time, tried []netip.AddrPort) (netip.AddrPort, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c, ok := b.sticky[client]; ok && now.Before(c.until) && b.usable(c.endpoint) && !slices.Contains(tried, c.endpoint) {
		b.remember(client, c.endpoint, now)
		return c.endpoint, true
	}
	best, total := -1, 0
	for i, e := range b.endpoints {
		if e.Weight <= 0 || slices.Contains(tried, e.Addr) {
			continue
		}
		total += e.Weight
		if b.credit[i] += e.Weight; best < 0 || b.credit[i] > b.credit[best] {
			best = i
		}
	}
	if best < 0 {
		return netip.AddrPort{}, false
	}
	b.credit[best] -= total
	b.remember(client, b.endpoints[best].Addr, now)
	return b.endpoints[best].Addr, true
}

func (b *balancer) usable(addr netip.AddrPort) bool {
	return slices.ContainsFunc(b.endpoints, func(e Endpoint) bool { return e.Addr == addr && e.Weight > 0 })
}

// remember stores the endpoint of a client. If too many clients are stored, it deletes expired ones, or else all of them.
func (b *balancer) remember(client netip.Addr, endpoint netip.AddrPort, now time.Time) {
	if b.affinity == 0 {
		return
	}
	if _, known := b.sticky[client]; !known && len(b.sticky) >= maxSticky {
		for c, chosen := range b.sticky {
			if !now.Before(chosen.until) {
				delete(b.sticky, c)
			}
		}
		if len(b.sticky) >= maxSticky {
			clear(b.sticky)
		}
	}
	if b.sticky == nil {
		b.sticky = map[netip.Addr]choice{}
	}
	b.sticky[client] = choice{endpoint, now.Add(b.affinity)}
}
