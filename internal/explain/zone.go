package explain

import (
	"fmt"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// zone is the zone of connection tracking in which the kernel looks for a packet's connection, for either direction of the connection.
type zone struct {
	original, reply uint16
	// rule is the rule that sets the zone. unknown is true if explain cannot tell whether the rule matches, or which zone it sets.
	rule    string
	unknown bool
}

// setZone has no effect on a packet that connection tracking has already processed.
func (w *walk) setZone(p *packet, r shown, v kernel.SetZone, f flow) {
	if !w.place.untracked {
		return
	}
	w.record(r, f, fmt.Sprintf("connection tracking uses zone %d", v.Zone), Passes)
	p.zone.rule = r.object
	p.zone.unknown = p.zone.unknown || !f.certain
	if v.Original {
		p.zone.original = v.Zone
	}
	if v.Reply {
		p.zone.reply = v.Zone
	}
}

// sameZone checks that a later packet is tracked in the zone of its connection. Otherwise the kernel does not assign it to the connection, and
// does not translate its addresses.
func (e *explaining) sameZone(connection, packet uint16, of, in zone, what string) bool {
	if of.rule == "" && in.rule == "" {
		return true
	}
	rules := strings.TrimPrefix(strings.TrimSuffix(of.rule+", "+in.rule, ", "), ", ")
	says := what + " belong to no connection: connection tracking searches another zone"
	switch {
	case of.unknown || in.unknown:
		e.unclear = true
		e.reason("explain cannot rule out that %s; rule: %s", says, rules)
	case connection != packet:
		e.partly = true
		e.stepOnce("connection tracking", rules, says, Stops)
		e.reason("%s; rule: %s", says, rules)
		return false
	}
	return true
}
