package explain

import (
	"fmt"
	"slices"

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
	p.zone.rule = r.object()
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
	rules := slices.DeleteFunc(slices.Compact([]string{of.rule, in.rule}), func(rule string) bool { return rule == "" })
	if len(rules) == 0 {
		return true
	}
	unknown := of.unknown || in.unknown
	if !unknown && connection == packet {
		return true
	}
	return e.lost("connection tracking", what+" belong to no connection: connection tracking searches another zone", rules, flow{certain: true}, !unknown)
}
