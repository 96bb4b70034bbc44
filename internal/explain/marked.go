package explain

import (
	"fmt"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// marked handles virtual servers for packets with a firewall mark, which IPVS prefers to those with an address. It returns true if the packet
// belongs to one of them.
func (e *explaining) marked(p *packet) bool {
	if e.k.Mode.NFTablesBalances() {
		return false
	}
	for _, s := range e.k.MarkServers {
		object := fmt.Sprintf("ipvsadm -L -f %d", s.Key.Mark)
		if s.Key.Family == inet.IPv6 {
			object += " -6"
		}
		switch p.selects(s) {
		case yes:
			says := fmt.Sprintf("the packet has the mark 0x%x, so IPVS uses the virtual server for this mark instead of the Service's", p.mark)
			e.step("ipvs", object, says+" ("+destinations(s)+")", Stops)
			e.reason(Stops, []string{p.marker}, "%s; command: %s; the rule that sets the mark: %s", says, object, p.marker)
			return true
		case maybe:
			e.reason(Unclear, []string{p.marker}, "IPVS uses the virtual server for the mark 0x%x instead of the Service's if the packet has this mark, and explain cannot evaluate "+
				"the packet's mark; command: %s; the rule that sets the mark: %s", s.Key.Mark, object, p.marker)
		}
	}
	return false
}

// selects reports whether the packet belongs to a virtual server for a firewall mark.
func (p *packet) selects(s kernel.TableServer) matchResult {
	if s.Key.Family != p.family {
		return no
	}
	return markIs(p.mark, p.markUnknown, s.Key.Mark, ^uint32(0))
}

func destinations(s kernel.TableServer) string {
	if len(s.Destinations) == 0 {
		return "it has no destinations"
	}
	var all []string
	for _, d := range s.Destinations[:min(len(s.Destinations), shownEndpoints)] {
		all = append(all, d.Addr.String())
	}
	if len(s.Destinations) > shownEndpoints {
		all = append(all, "...")
	}
	return "its destinations are " + strings.Join(all, ", ")
}
