// Package quickcheck selects the state that quick checks read, and decides whether another program has changed it. A
// difference from the known state triggers an audit. If the audit cannot explain the difference, later checks ignore
// it.
//
// May import: inet, kernel. The package performs no I/O and has no clock: callers pass the time.
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
	// ServersAtATime is the number of virtual servers that a check compares in full. If there are more than few, it compares
	// only one, because audits compare each of them more often than checks could.
	ServersAtATime = 4
	few            = 240
	// Rotation is the number of checks that compare each of a few virtual servers once.
	Rotation = few / ServersAtATime
	// minDistance is the initial time between audits without findings. Each further audit without findings doubles it.
	minDistance = 2 * time.Second
	quiet       = 2 * time.Minute
)

// Part is a part of the kernel.
type Part int

// These are the parts that a check compares.
const (
	Servers Part = iota
	Sets
	Rules
	Sysctls
	Parts
)

// Subject is an object that a check compares.
type Subject struct {
	Part Part
	Name string
}

// Mismatches describe how subjects differ from the known state.
type Mismatches map[Subject]string

const gone = "gone"

// Checks evaluates the results of checks. The zero value is ready to use.
type Checks struct {
	// accepted contains the mismatches that an audit could not explain. suspected contains the mismatches that an audit
	// must explain.
	accepted, suspected Mismatches
	// round increases with each new set of suspected mismatches. asked is the round in which the running audit began.
	// audited is the last round that a finished audit covers.
	round, asked, audited uint64

	vain int
	last time.Time

	turn []kernel.ServerKey
}

// Next returns what the next check looks up: known virtual servers in turn, and one known member of each set.
func (c *Checks) Next(known *kernel.State) kernel.Sample {
	if len(c.turn) == 0 {
		c.turn = slices.AppendSeq(make([]kernel.ServerKey, 0, len(known.Servers)), maps.Keys(known.Servers))
	}
	n := min(ServersAtATime, len(c.turn))
	if len(known.Servers) > few {
		n = 1
	}
	next := kernel.Sample{Servers: c.turn[:n]}
	c.turn = c.turn[n:]
	for set, members := range known.Members {
		for element := range members {
			next.Members = append(next.Members, kernel.Member{Set: set, Element: element})
			break
		}
	}
	return next
}

// Known is the known state of the kernel. IPv4Servers is the number of its IPv4 virtual servers.
type Known struct {
	*kernel.State
	IPv4Servers int
}

// Compare returns the mismatches between the known state and the summary that a check read. asked is what the check looked up. The result omits
// the parts for which skip is true.
func Compare(known Known, asked kernel.Sample, read *kernel.Summary, skip [Parts]bool) Mismatches {
	found := Mismatches{}
	if !skip[Servers] {
		if read.IPv4Servers != kernel.Uncounted && known.IPv4Servers != read.IPv4Servers {
			found[Subject{Servers, "number"}] = strconv.Itoa(read.IPv4Servers - known.IPv4Servers)
		}
		found.servers(known.Servers, asked.Servers, read.Servers)
	}
	switch {
	case skip[Sets]:
	case read.Sets != nil:
		found.sets(known.State, read.Sets)
	default:
		found.members(asked.Members, read.Members)
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
		} else if had := len(known.Members[name]); now.Set != set || now.Members != kernel.Uncounted && now.Members != had {
			m[Subject{Sets, name}] = fmt.Sprintf("%s %+d", now.Set, now.Members-had)
		}
	}
	for name, set := range read {
		if _, exists := known.Sets[name]; !exists {
			m[Subject{Sets, name}] = set.String()
		}
	}
}

// members finds sets that were emptied or replaced.
func (m Mismatches) members(asked []kernel.Member, read map[kernel.Member]struct{}) {
	for _, member := range asked {
		if _, exists := read[member]; !exists {
			m[Subject{Sets, member.Set}] = "without " + member.Element.String()
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

// Judge records the findings of a check and reports whether an audit must explain them. It accepts the rules that the
// first check finds, because the agent has just read or written them.
func (c *Checks) Judge(now time.Time, found Mismatches, skipped [Parts]bool) bool {
	if c.accepted == nil {
		c.accepted, c.suspected = Mismatches{}, Mismatches{}
	}
	// If a mismatch disappears and comes back, it is a new change.
	maps.DeleteFunc(c.accepted, func(s Subject, _ string) bool {
		_, still := found[s]
		return !still && !skipped[s.Part] && s.Part != Rules
	})
	suspected := maps.Clone(c.suspected)
	maps.DeleteFunc(suspected, func(s Subject, _ string) bool { return !skipped[s.Part] })
	again := false
	for subject, value := range found {
		if before, known := c.accepted[subject]; known && before == value {
			continue
		}
		if c.explained(subject, value) {
			c.accepted[subject] = value
		} else {
			suspected[subject] = value
			again = true
		}
	}
	fresh := c.audited == c.round || !maps.Equal(suspected, c.suspected)
	c.suspected = suspected
	if !again {
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

func (c *Checks) explained(subject Subject, value string) bool {
	_, known := c.accepted[subject]
	suspect, suspected := c.suspected[subject]
	if !suspected {
		return !known && subject.Part == Rules
	}
	return suspect == value && c.audited == c.round
}

// AuditBegins records that an audit begins to read the kernel.
func (c *Checks) AuditBegins() { c.asked = c.round }

// AuditEnds records that an audit's result has been compared, and whether it found drift. If it did, no mismatch is
// accepted, because the same mismatch may be a new change.
func (c *Checks) AuditEnds(drift bool) {
	switch {
	case drift:
		c.vain, c.suspected = 0, Mismatches{}
	case c.asked != c.audited:
		c.vain++
	}
	c.audited = c.asked
}

// Distance returns the minimum time between two audits triggered by mismatches.
func (c *Checks) Distance() time.Duration {
	const doublings = 10
	if c.vain < 2 {
		return 0
	}
	return minDistance << min(c.vain-2, doublings)
}
