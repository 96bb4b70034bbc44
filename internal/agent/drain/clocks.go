// Package drain tracks how long destinations have been draining, and which endpoints with weight 0 have no
// connections left.
//
// The kernel's state alone shows which destinations are draining: they have weight 0 and are not wanted. Only the
// start times are kept in memory, and a restart resets them (I9).
//
// May import: diff, kernel, want. The package has no clock: callers pass the time.
package drain

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Clock maps the draining destinations of one virtual server to the times at which they started to drain. A Clock that Of has returned is
// immutable.
type Clock map[netip.AddrPort]time.Time

// wholeServer represents all destinations of a lingering virtual server, which also waits for its last connection.
var wholeServer netip.AddrPort

func (c Clock) destinations() int {
	if _, lingers := c[wholeServer]; lingers {
		return len(c) - 1
	}
	return len(c)
}

// Clocks are the clocks of all virtual servers with draining destinations.
type Clocks struct {
	servers map[kernel.ServerKey]Clock
	// owners maps the virtual servers with clocks to their Services. services counts the draining destinations of each Service.
	owners   map[kernel.ServerKey]want.ServiceID
	services map[want.ServiceID]int
	count    int
	// shared contains the virtual servers whose clock Of has returned. Such a clock is copied before it changes.
	shared map[kernel.ServerKey]struct{}
	// next is the time of the next count. turn contains the virtual servers of the last count.
	next time.Time
	turn []kernel.ServerKey
}

// NewClocks returns empty Clocks.
func NewClocks() *Clocks {
	return &Clocks{
		servers: map[kernel.ServerKey]Clock{}, owners: map[kernel.ServerKey]want.ServiceID{}, services: map[want.ServiceID]int{},
		shared: map[kernel.ServerKey]struct{}{},
	}
}

// Pass is the part of a sync's result that Clocks uses.
type Pass struct {
	Target *diff.Target
	// Have is the kernel's state after the sync; nil if it was never read.
	Have *kernel.State
	Plan diff.Plan
	Full bool
}

// Update starts and stops clocks after a sync. After a full sync, it updates the clocks of every virtual server. After another
// sync, it updates only the virtual servers that are due, and the destinations that the plan names.
func (c *Clocks) Update(now time.Time, interval time.Duration, p Pass) {
	if p.Have == nil {
		return
	}
	due := !now.Before(c.next)
	affected := c.affected(p, due)
	for key := range affected {
		c.updateServer(now, p, key)
	}
	update := func(d kernel.ServerDestination) {
		if _, updated := affected[d.Server]; !updated {
			c.updateDestination(now, p, d.Server, d.Addr)
		}
	}
	for op := range p.Plan.All {
		if d, ok := op.Object.(kernel.ServerDestination); ok {
			update(d)
		}
	}
	for _, d := range p.Plan.AtZero {
		update(d)
	}
	if due {
		c.next = now.Add(c.distance(interval))
	}
}

func (c *Clocks) affected(p Pass, counted bool) map[kernel.ServerKey]struct{} {
	affected := map[kernel.ServerKey]struct{}{}
	add := func(key kernel.ServerKey) { affected[key] = struct{}{} }
	switch {
	case p.Full:
		for key := range c.servers {
			add(key)
		}
		for _, key := range diff.Drains(p.Target, p.Have) {
			add(key)
		}
	case counted:
		for _, key := range c.turn {
			add(key)
		}
	}
	for key := range p.Target.Lingering() {
		if c.servers[key] == nil {
			add(key)
		}
	}
	for op := range p.Plan.All {
		if server, ok := op.Object.(kernel.Server); ok {
			add(server.Key)
		}
	}
	return affected
}

func (c *Clocks) updateServer(now time.Time, p Pass, key kernel.ServerKey) {
	clock := c.servers[key]
	c.replace(p, key, clock.destinations(), clock.continued(now, draining(p, key)))
}

// replace replaces a clock that had the given number of destinations.
func (c *Clocks) replace(p Pass, key kernel.ServerKey, before int, clock Clock) {
	c.add(c.owners[key], -before)
	if server := p.Target.Server(key); server != nil {
		c.owners[key] = server.Owner.Service
	}
	c.add(c.owners[key], clock.destinations())
	if c.servers[key] = clock; len(clock) == 0 {
		delete(c.servers, key)
		delete(c.owners, key)
		delete(c.shared, key)
	}
}

func (c *Clocks) add(owner want.ServiceID, destinations int) {
	c.count += destinations
	if c.services[owner] += destinations; c.services[owner] == 0 {
		delete(c.services, owner)
	}
}

// updateDestination does not visit the virtual server's other destinations, which may number in the thousands.
func (c *Clocks) updateDestination(now time.Time, p Pass, key kernel.ServerKey, addr netip.AddrPort) {
	clock := c.servers[key]
	if clock.runs(wholeServer) {
		c.updateServer(now, p, key)
		return
	}
	server := p.Target.Server(key)
	d, exists := p.Have.Servers[key].Destination(addr)
	drains := server != nil && exists && diff.Draining(server, d)
	if drains == clock.runs(addr) {
		return
	}
	before := clock.destinations()
	if _, shared := c.shared[key]; shared {
		delete(c.shared, key)
		clock = maps.Clone(clock)
	}
	if clock == nil {
		clock = Clock{}
	}
	if delete(clock, addr); drains {
		clock[addr] = now
	}
	c.replace(p, key, before, clock)
}

func draining(p Pass, key kernel.ServerKey) []netip.AddrPort {
	server := p.Target.Server(key)
	if server == nil {
		return nil
	}
	var addrs []netip.AddrPort
	if p.Target.Lingers(key) {
		addrs = append(addrs, wholeServer)
	}
	for _, destination := range p.Have.Servers[key].Destinations {
		if diff.Draining(server, destination) {
			addrs = append(addrs, destination.Addr)
		}
	}
	return addrs
}

func (c Clock) continued(now time.Time, draining []netip.AddrPort) Clock {
	if len(draining) == len(c) && !slices.ContainsFunc(draining, func(a netip.AddrPort) bool { return !c.runs(a) }) {
		return c
	}
	next := make(Clock, len(draining))
	for _, addr := range draining {
		next[addr] = now
		if c.runs(addr) {
			next[addr] = c[addr]
		}
	}
	return next
}

func (c Clock) runs(addr netip.AddrPort) bool {
	_, running := c[addr]
	return running
}

// maxDraining is the maximum number of draining destinations of a Service, however often its endpoints change.
const maxDraining = 1 << 16

// Room returns how many more destinations of a virtual server's Service may drain.
func (c *Clocks) Room(server *want.Server) int { return maxDraining - c.services[server.Owner.Service] }

// Of returns the clock of a virtual server; nil if none of its destinations is draining.
func (c *Clocks) Of(key kernel.ServerKey) Clock {
	clock := c.servers[key]
	if clock != nil {
		c.shared[key] = struct{}{}
	}
	return clock
}

// Count returns the number of draining destinations.
func (c *Clocks) Count() int { return c.count }

// Next returns the time of the next count of connections; zero if no destination is draining.
func (c *Clocks) Next() time.Time {
	if len(c.servers) == 0 {
		return time.Time{}
	}
	return c.next
}

// Due reports whether connections must be counted now.
func (c *Clocks) Due(now time.Time) bool { return len(c.servers) > 0 && !now.Before(c.next) }

// maxCounted is the maximum number of virtual servers in a turn. Each costs one request to the kernel, and changes in
// the cluster wait until the turn ends.
const maxCounted = 100

// Turn returns the virtual servers whose connections are counted now, at most maxCounted.
func (c *Clocks) Turn() []kernel.ServerKey {
	keys := slices.SortedFunc(maps.Keys(c.servers), kernel.ServerKey.Compare)
	if len(keys) > maxCounted {
		if n := len(c.turn); n > 0 {
			next, drains := slices.BinarySearchFunc(keys, c.turn[n-1], kernel.ServerKey.Compare)
			if drains {
				next++
			}
			keys = slices.Concat(keys[next:], keys[:next])
		}
		keys = keys[:maxCounted]
	}
	c.turn = keys
	return keys
}

// minBetweenTurns limits the cost of counting while many destinations drain.
const minBetweenTurns = time.Second

// distance returns the time between two turns. If possible, every virtual server has a turn in each interval.
func (c *Clocks) distance(interval time.Duration) time.Duration {
	turns := max((len(c.servers)+maxCounted-1)/maxCounted, 1)
	return min(interval, max(interval/time.Duration(turns), minBetweenTurns))
}

// Draining reports whether a destination has a clock.
func (c *Clocks) Draining(key kernel.ServerKey, destination netip.AddrPort) bool {
	return c.servers[key].runs(destination)
}

// Expired reports whether a destination has been draining for at least the timeout. A timeout of 0 never expires.
func (c *Clocks) Expired(now time.Time, timeout time.Duration, key kernel.ServerKey, destination netip.AddrPort) bool {
	if timeout == 0 {
		return false
	}
	since, draining := c.servers[key][destination]
	return draining && now.Sub(since) >= timeout
}
