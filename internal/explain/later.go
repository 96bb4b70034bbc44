package explain

import (
	"fmt"
	"math"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// phase is a packet's place in its connection.
type phase uint8

const (
	opens        phase = iota
	acknowledges       // a TCP segment without data
	carriesData        // a long packet, late in the connection
)

// laterPhases returns the phases after the first packet.
func laterPhases(p inet.Protocol) []phase {
	if p == inet.TCP {
		return []phase{acknowledges, carriesData}
	}
	return []phase{carriesData}
}

func (p phase) String() string {
	if p == acknowledges {
		return "acknowledgments"
	}
	return "data packets"
}

// later identifies a packet on its way to IPVS. Apart from this, it is the same for all endpoints.
type later struct {
	phase                 phase
	ctMark, ctMarkUnknown uint32
}

// laterPackets traces later packets of the connection, in both directions. It returns false if a rule stops them: the client then connects,
// but receives no answer.
func (e *explaining) laterPackets(first *packet, w *walk, d kernel.ObservedDestination) bool {
	for _, phase := range laterPhases(first.protocol) {
		arrived := e.laterArrives(first, phase)
		if arrived == nil {
			return false
		}
		p := *arrived
		p.to, p.out = d.Addr, e.k.outInterface(d.Addr.Addr())
		if !e.laterPass(&p, e.after(&p), fmt.Sprintf("%s to endpoint %s", phase, d.Addr)) {
			return false
		}
		back := e.answer(&p, w)
		what := fmt.Sprintf("%s of endpoint %s", phase, d.Addr)
		if !e.laterPass(back, e.back(back, p.sent), what) || !e.sameZone(first.zone.reply, back.zone.reply, first.zone, back.zone, what) {
			return false
		}
	}
	return true
}

// laterArrives returns a later packet as it reaches IPVS, or nil if a rule stops it.
func (e *explaining) laterArrives(first *packet, phase phase) *packet {
	key := later{phase, first.ctMark, first.ctMarkUnknown}
	if p, traced := e.arrived[key]; traced {
		return p
	}
	p := newPacket(e.k, e.q)
	p.phase, p.tracking, p.translated = phase, established, e.k.Mode.NFTablesBalances()
	p.ctMark, p.ctMarkUnknown = first.ctMark, first.ctMarkUnknown
	if !e.laterPass(p, e.before(p), phase.String()) || !e.sameZone(first.zone.original, p.zone.original, first.zone, p.zone, phase.String()) {
		p = nil
	}
	if e.arrived == nil {
		e.arrived = map[later]*packet{}
	}
	e.arrived[key] = p
	return p
}

// laterPass walks hooks, and reports only the rules that matter for this packet and not for the first one.
func (e *explaining) laterPass(p *packet, hooks []segment, what string) bool {
	w := e.walk()
	passed := w.passAll(p, hooks)
	var steps []Step
	if !passed {
		steps = append(steps, w.steps[len(w.steps)-1])
		text := fmt.Sprintf("%s are stopped: %s; rule: %s", what, steps[0].Message, steps[0].Object)
		e.because(Cause{text, Partly, w.foreignOf(steps[0].Object), true})
	}
	w.maybeStops = slices.DeleteFunc(w.maybeStops, func(rule string) bool { return slices.Contains(e.uncertain, rule) })
	for _, s := range w.steps {
		if s.Verdict == Depends && slices.Contains(w.maybeStops, s.Object) {
			steps = append(steps, s)
		}
	}
	for _, s := range steps {
		at := p.phase.String() + ", " + s.At
		if p.reply {
			at = "reply, " + at
		}
		e.stepOnce(at, s.Object, s.Message, s.Verdict)
	}
	e.mayStop(w, what, true)
	return passed
}

// fullSize is the least length of a full packet on most networks.
const fullSize = 1400

// length returns the limits of the packet's length with all headers. TCP options have up to 40 bytes.
func (p *packet) length() (least, greatest uint32) {
	const udpHeader, tcpHeader, tcpOptions = 8, 20, 40
	header := map[inet.Family]uint32{inet.IPv4: 20, inet.IPv6: 40}[p.family]
	switch {
	case p.protocol != inet.TCP:
		return header + udpHeader, math.MaxUint16
	case p.phase == carriesData:
		return fullSize, math.MaxUint16
	}
	return header + tcpHeader, header + tcpHeader + tcpOptions
}

func (p *packet) hasLength(c kernel.Length) matchResult {
	least, greatest := p.length()
	switch {
	case c.First <= least && greatest <= c.Last:
		return yes
	case c.Last < least || greatest < c.First:
		return no
	}
	return maybe
}

// count returns the limits of the number of packets that the connection has had so far, in one direction or both.
func (p *packet) count(f kernel.NFTField) (least, greatest uint64) {
	first := map[phase][2]uint64{opens: {1, 0}, acknowledges: {2, 1}, carriesData: {5, 5}}[p.phase]
	if p.phase == opens && p.reply {
		first[1] = 1
	}
	least = first[0] + first[1]
	if f.Directed {
		least = first[0]
		if f.Reply {
			least = first[1]
		}
	}
	if p.phase == opens {
		return least, least
	}
	return least, math.MaxUint64
}
