package kernel

import (
	"cmp"
	"fmt"
	"time"
)

// Timeouts are the IPVS timeouts for idle connections, in whole seconds. They apply to all virtual servers in a network namespace.
// Writing a zero leaves the timeout unchanged. Verb: Ensure.
type Timeouts struct{ TCP, TCPFin, UDP time.Duration }

func (t Timeouts) String() string {
	return fmt.Sprintf("%d %d %d", int(t.TCP.Seconds()), int(t.TCPFin.Seconds()), int(t.UDP.Seconds()))
}

// Holds reports whether t contains every timeout set in want.
func (t Timeouts) Holds(want Timeouts) bool {
	same := func(have, want time.Duration) bool { return want == 0 || have == want }
	return same(t.TCP, want.TCP) && same(t.TCPFin, want.TCPFin) && same(t.UDP, want.UDP)
}

// With returns t after applying the nonzero timeouts in set.
func (t Timeouts) With(set Timeouts) Timeouts {
	return Timeouts{TCP: cmp.Or(set.TCP, t.TCP), TCPFin: cmp.Or(set.TCPFin, t.TCPFin), UDP: cmp.Or(set.UDP, t.UDP)}
}

// DefaultTimeouts are the kernel's own timeouts.
var DefaultTimeouts = Timeouts{TCP: 15 * time.Minute, TCPFin: 2 * time.Minute, UDP: 5 * time.Minute}

// TimeoutChange is a change of the timeout of one kind of connection.
type TimeoutChange struct {
	Of       string
	From, To time.Duration
}

// ChangesTo lists the timeouts that differ.
func (t Timeouts) ChangesTo(o Timeouts) (all []TimeoutChange) {
	for _, c := range []TimeoutChange{{"TCP connections", t.TCP, o.TCP}, {"TCP connections after a FIN", t.TCPFin, o.TCPFin}, {"UDP flows", t.UDP, o.UDP}} {
		if c.From != c.To {
			all = append(all, c)
		}
	}
	return all
}
