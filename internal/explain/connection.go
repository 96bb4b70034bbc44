package explain

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// endingStates are the TCP states in which IPVS schedules a new connection from the same client port.
var endingStates = []string{"TIME_WAIT", "FIN_WAIT", "CLOSE"}

// connection finds the IPVS connection from the client's port. An existing connection keeps its endpoint regardless of
// weights.
func (e *explaining) connection() (kernel.Connection, bool) {
	if e.q.FromPort == 0 {
		return kernel.Connection{}, false
	}
	if e.k.Mode.NFTablesBalances() {
		e.step("connection", fmt.Sprintf("conntrack -L --orig-src %s --sport %d", e.q.From, e.q.FromPort),
			"explain does not read connection tracking: if this connection exists, it continues to its endpoint; the other steps are for a new connection", Passes)
		return kernel.Connection{}, false
	}
	from := netip.AddrPortFrom(e.q.From, e.q.FromPort)
	for _, c := range e.k.Connections {
		if c.Client != from || !leadsTo(c, e.q.To) {
			continue
		}
		object := fmt.Sprintf("ipvsadm -Lnc: %s %s -> %s %s, %d s left", c.Client, c.Virtual, c.Destination, c.State, c.Expires)
		if slices.Contains(endingStates, c.State) {
			e.step("connection", object, "the connection from this port has ended; IPVS schedules a new connection", Passes)
			return kernel.Connection{}, false
		}
		e.step("connection", object, "IPVS tracks this connection; its packets go to its endpoint regardless of scheduler and weights", Passes)
		return c, true
	}
	e.step("connection", "ipvsadm -Lnc", "IPVS tracks no connection from this port; this is a new connection", Passes)
	return kernel.Connection{}, false
}

// leadsTo reports whether a connection, or a persistence template, belongs to a virtual server. Two virtual servers can differ only in their
// protocol.
func leadsTo(c kernel.Connection, key kernel.ServerKey) bool {
	return c.Virtual == key.Addr && strings.EqualFold(c.Protocol, key.Protocol.String())
}

// otherConnections adds a step about the client's open connections, to which the other steps do not apply.
func (e *explaining) otherConnections() {
	if !e.q.From.IsValid() || e.q.FromPort != 0 {
		return
	}
	there := map[string]bool{}
	for _, c := range e.k.Connections {
		if c.Client.Addr() == e.q.From && c.Client.Port() != 0 && leadsTo(c, e.q.To) && !slices.Contains(endingStates, c.State) {
			there[c.Destination.String()] = true
		}
	}
	if len(there) > 0 {
		e.step("connection", "ipvsadm -Lnc", "open connections of this client continue to "+strings.Join(slices.Sorted(maps.Keys(there)), ", ")+
			"; the other steps are for a new connection (for an existing one, use --from ADDRESS:PORT)", Passes)
	}
}

func (e *explaining) existing(p *packet, server kernel.ObservedServer, c kernel.Connection) {
	i := slices.IndexFunc(server.Destinations, func(d kernel.ObservedDestination) bool { return d.Addr == c.Destination })
	if i < 0 {
		e.fail("ipvs", "ipvsadm -L "+server.Key.String(),
			fmt.Sprintf("the connection's endpoint %s is no longer a destination of %s; IPVS expires the connection", c.Destination, server.Key))
		return
	}
	e.reach(*p, server.Destinations[i])
	if delete(e.verdicts, Stops); len(e.out.Endpoints) == 0 {
		e.conclude(Stops)
	}
}
