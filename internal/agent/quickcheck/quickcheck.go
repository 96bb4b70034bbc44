// Package quickcheck decides what quick checks read, and whether what they read shows a change by another program. A quick check reads a
// summary of the kernel. What differs from the agent's knowledge makes an audit due; what an audit could not explain is no reason for another.
//
// May import: inet, kernel. It does no I/O and has no clock.
package quickcheck

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

const (
	// ServersAtATime is how many virtual servers a check compares in full: each of 10,000 once in 42 minutes, at one check a
	// second, so that one is found after 84 minutes at the latest. They are most
	// of what a check costs.
	ServersAtATime = 4
	// minDistance is the distance between two audits in vain; each further one doubles it.
	minDistance = 2 * time.Second
	// quiet is how long no audit may be in vain until that is forgotten.
	quiet = 2 * time.Minute
)

// Part is a part of the kernel.
type Part int

// The parts that a check compares.
const (
	Servers Part = iota
	Sets
	Rules
	Sysctls
	Parts // their number
)

// Subject is what a check compares.
type Subject struct {
	Part Part
	Name string
}

// Mismatches say how subjects differ from what the agent knows, in values that only have to be comparable.
type Mismatches map[Subject]string

// gone is the value of a subject that no longer exists.
const gone = "gone"

// Checks judges the results of checks. The zero value is ready to use.
type Checks struct {
	// accepted are mismatches without consequence: an audit has found nothing. suspected are those that an audit has to explain.
	accepted, suspected Mismatches
	// round counts sets of suspected mismatches; asked is the round at which the running audit began, audited the last one for which an
	// audit has ended.
	round, asked, audited uint64

	// vain counts audits without findings; last is when the last mismatch was found.
	vain int
	last time.Time

	// turn are the virtual servers that are compared next, before all others have had their turn.
	turn []kernel.ServerKey
}

// Next returns the virtual servers that the next check reads, given the known ones.
func (c *Checks) Next(known map[kernel.ServerKey]kernel.ObservedServer) []kernel.ServerKey {
	if len(c.turn) == 0 {
		c.turn = slices.AppendSeq(make([]kernel.ServerKey, 0, len(known)), maps.Keys(known))
	}
	n := min(ServersAtATime, len(c.turn))
	next := c.turn[:n]
	c.turn = c.turn[n:]
	return next
}

// Known is what the agent knows of the kernel. IPv4Servers is the number of its virtual servers of IPv4.
type Known struct {
	*kernel.State
	IPv4Servers int
}

// Compare finds what differs between what is known and what a check that asked for these virtual servers has read. It leaves out the parts
// for which skip is true.
func Compare(known Known, asked []kernel.ServerKey, read *kernel.Summary, skip [Parts]bool) Mismatches {
	found := Mismatches{}
	if !skip[Servers] {
		if known.IPv4Servers != read.IPv4Servers {
			found[Subject{Servers, "number"}] = strconv.Itoa(read.IPv4Servers - known.IPv4Servers)
		}
		found.servers(known.Servers, asked, read.Servers)
	}
	if !skip[Sets] {
		found.sets(known.State, read.Sets)
	}
	if !skip[Rules] {
		for f, sum := range read.Rules {
			found[Subject{Rules, f.String()}] = strconv.FormatUint(sum, 16)
		}
	}
	if !skip[Sysctls] {
		found.sysctls(known.Sysctls, read.Sysctls)
	}
	return found
}

func (m Mismatches) servers(known map[kernel.ServerKey]kernel.ObservedServer, asked []kernel.ServerKey, read map[kernel.ServerKey]kernel.ObservedServer) {
	for _, key := range asked {
		before, stands := known[key]
		now, exists := read[key]
		switch {
		case stands && !exists:
			m[Subject{Servers, key.String()}] = gone
		case stands && !withoutLimits(now).SameConfig(withoutLimits(before)):
			m[Subject{Servers, key.String()}] = fmt.Sprint(now.Server, now.Destinations)
		}
	}
}

// withoutLimits removes the connection limits, which a dump does not show.
func withoutLimits(s kernel.ObservedServer) kernel.ObservedServer {
	s.Destinations = slices.Clone(s.Destinations)
	for i := range s.Destinations {
		s.Destinations[i].Upper, s.Destinations[i].Lower = 0, 0
	}
	return s
}

func (m Mismatches) sets(known *kernel.State, read map[string]kernel.SetSummary) {
	for name, set := range known.Sets {
		now, exists := read[name]
		if !exists {
			m[Subject{Sets, name}] = gone
		} else if had := len(known.Members[name]); now.Set != set || now.Members != had {
			m[Subject{Sets, name}] = fmt.Sprintf("%s %+d", now.Set, now.Members-had)
		}
	}
	for name, set := range read {
		if _, exists := known.Sets[name]; !exists {
			m[Subject{Sets, name}] = set.String()
		}
	}
}

func (m Mismatches) sysctls(known, read map[string]string) {
	for name, value := range known {
		switch now, exists := read[name]; {
		case !exists:
			m[Subject{Sysctls, name}] = gone
		case now != value:
			m[Subject{Sysctls, name}] = now
		}
	}
}

// Judge takes over what a check has found and reports whether an audit must explain it. The first value of the rules is taken as it is: they
// have been read or written just before.
func (c *Checks) Judge(now time.Time, found Mismatches, skipped [Parts]bool) bool {
	if c.accepted == nil {
		c.accepted, c.suspected = Mismatches{}, Mismatches{}
	}
	// A mismatch that ends is accepted no longer.
	maps.DeleteFunc(c.accepted, func(s Subject, _ string) bool {
		_, still := found[s]
		return !still && !skipped[s.Part] && s.Part != Rules
	})
	suspected := Mismatches{}
	for subject, value := range found {
		if before, known := c.accepted[subject]; known && before == value {
			continue
		}
		if c.explained(subject, value) {
			c.accepted[subject] = value
		} else {
			suspected[subject] = value
		}
	}
	fresh := c.audited == c.round || !maps.Equal(suspected, c.suspected)
	c.suspected = suspected
	if len(suspected) == 0 {
		return false
	}
	if fresh {
		c.round++
	}
	if now.Sub(c.last) > quiet {
		c.vain = 0
	}
	c.last = now
	return true
}

// explained reports whether a mismatch has no consequence: an audit has seen it and found nothing, or it is the first value of the rules.
func (c *Checks) explained(subject Subject, value string) bool {
	_, known := c.accepted[subject]
	suspect, again := c.suspected[subject]
	if !again {
		return !known && subject.Part == Rules
	}
	return suspect == value && c.audited == c.round
}

// AuditBegins notes that an audit begins to read.
func (c *Checks) AuditBegins() { c.asked = c.round }

// AuditEnds notes that an audit has been compared, and whether it found drift. Then it explains no mismatch that is found again: the same may
// have happened again.
func (c *Checks) AuditEnds(drift bool) {
	switch {
	case drift:
		c.vain, c.suspected = 0, Mismatches{}
	case c.asked != c.audited:
		c.vain++
	}
	c.audited = c.asked
}

// Distance is the least time between two audits because of mismatches; 0 unless several have been in vain.
func (c *Checks) Distance() time.Duration {
	const doublings = 10 // more than enough for every interval
	if c.vain < 2 {
		return 0
	}
	return minDistance << min(c.vain-2, doublings)
}
