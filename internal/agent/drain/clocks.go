// Package drain knows how long destinations have been draining, and which endpoints that an operator set to weight 0 have no
// connection left.
//
// That a destination drains is read from the kernel alone (weight 0, and not wanted). Only the clocks are the agent's: a restart
// starts them again (I9).
//
// May import: diff, kernel, want. It has no clock of its own: every method takes the time.
package drain

import (
	"maps"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Clock holds the times at which the destinations of one virtual server started to drain. It is immutable.
type Clock map[kernel.Destination]time.Time

// wholeServer stands for all destinations of a lingering virtual server, which also waits for its last connection.
var wholeServer kernel.Destination

// Clocks are the clocks of all virtual servers with draining destinations.
type Clocks struct {
	servers map[kernel.ServerKey]Clock
	// next is the time of the next count of draining destinations' connections.
	next time.Time
}

// NewClocks returns an empty set of clocks.
func NewClocks() *Clocks { return &Clocks{servers: map[kernel.ServerKey]Clock{}} }

// Pass is the part of a sync's result that concerns draining.
type Pass struct {
	Want *want.State
	// Have is the kernel's state after the sync; nil if it has never been read.
	Have *kernel.State
	Plan diff.Plan
	// Full says that the whole kernel was read.
	Full bool
}

// Update starts and stops clocks after a sync. A full sync updates every virtual server; an incremental one those in the plan, those
// that linger, and, if a count was due, those with a clock.
func (c *Clocks) Update(now time.Time, interval time.Duration, p Pass) {
	if p.Have == nil {
		return
	}
	counted := !now.Before(c.next)
	if p.Full || counted {
		for _, key := range c.Servers() {
			c.updateServer(now, p, key)
		}
	}
	if p.Full {
		for _, key := range diff.Drains(p.Want, p.Have) {
			c.updateServer(now, p, key)
		}
	}
	for key := range p.Want.Lingering {
		c.updateServer(now, p, key)
	}
	for _, op := range p.Plan.Ops() {
		switch o := op.Object.(type) {
		case kernel.ServerDestination:
			c.updateServer(now, p, o.Server)
		case kernel.Server:
			c.updateServer(now, p, o.Key)
		}
	}
	if counted {
		c.next = now.Add(interval)
	}
}

func (c *Clocks) updateServer(now time.Time, p Pass, key kernel.ServerKey) {
	before, clock := c.servers[key], Clock{}
	run := func(destination kernel.Destination) {
		since, running := before[destination]
		if !running {
			since = now
		}
		clock[destination] = since
	}
	delete(c.servers, key)
	server := p.Want.Servers[key]
	if server == nil {
		return
	}
	if p.Want.Lingers(key) {
		run(wholeServer)
	}
	for _, destination := range p.Have.Servers[key].Destinations {
		if diff.Draining(server.Destinations, destination) {
			run(destination.Destination)
		}
	}
	if len(clock) > 0 {
		c.servers[key] = clock
	}
}

// Of returns the clock of a virtual server; nil if none of its destinations drains.
func (c *Clocks) Of(key kernel.ServerKey) Clock { return c.servers[key] }

// Count is the number of draining destinations.
func (c *Clocks) Count() int {
	n := 0
	for _, clock := range c.servers {
		n += len(clock)
		if _, lingers := clock[wholeServer]; lingers {
			n--
		}
	}
	return n
}

// Next is when the connections of draining destinations are counted next; zero if none drains.
func (c *Clocks) Next() time.Time {
	if len(c.servers) == 0 {
		return time.Time{}
	}
	return c.next
}

// Due reports whether it is time to count the connections of draining destinations.
func (c *Clocks) Due(now time.Time) bool { return len(c.servers) > 0 && !now.Before(c.next) }

// Servers returns the virtual servers with draining destinations, sorted.
func (c *Clocks) Servers() []kernel.ServerKey {
	return slices.SortedFunc(maps.Keys(c.servers), kernel.ServerKey.Compare)
}

// Expired reports whether a destination has been draining for at least the timeout. A timeout of 0 never expires.
func (c *Clocks) Expired(now time.Time, timeout time.Duration, key kernel.ServerKey, destination kernel.Destination) bool {
	since, draining := c.servers[key][destination]
	return draining && timeout > 0 && now.Sub(since) >= timeout
}
