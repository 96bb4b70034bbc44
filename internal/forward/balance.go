package forward

import (
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Endpoint is where connections are passed on to.
type Endpoint struct {
	Addr netip.AddrPort
	// Weight is the endpoint's share of new clients. One with weight 0 keeps its clients and gets no new ones.
	Weight int
}

// maxSticky is the number of clients that a balancer remembers.
const maxSticky = 1 << 16

// balancer chooses endpoints for new clients: in turn by weight, or the client's previous endpoint.
type balancer struct {
	mu        sync.Mutex
	endpoints []Endpoint
	// credit of each endpoint: it grows by the weight at each turn, and the turn goes to the largest.
	credit []int
	// affinity is how long a client keeps its endpoint after its latest connection; 0 for no affinity.
	affinity time.Duration
	sticky   map[netip.Addr]choice
}

// choice is the endpoint that a client got, and until when it keeps it.
type choice struct {
	endpoint netip.AddrPort
	until    time.Time
}

// set replaces the endpoints. Clients keep their choices while these exist and have a weight.
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

// pick returns the endpoint for a client, except those that it has tried. It reports false if there is none.
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

// remember keeps a client's choice. If there are too many clients, expired ones are forgotten, and without any of these all are.
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
