package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// endingStates are those of TCP connections whose client may begin anew from the same port: IPVS chooses again then.
var endingStates = []string{"TIME_WAIT", "FIN_WAIT", "CLOSE"}

// connection is the one that IPVS follows from the client's very port: it goes on to its endpoint, whatever the weights are now.
func (e *explaining) connection() (kernel.Connection, bool) {
	if e.q.FromPort == 0 {
		return kernel.Connection{}, false
	}
	from := netip.AddrPortFrom(e.q.From, e.q.FromPort)
	for _, c := range e.k.Connections {
		if c.Client != from || c.Virtual != e.q.To.Addr || !isProtocol(e.q.To.Protocol, strings.ToLower(c.Protocol)) {
			continue
		}
		object := fmt.Sprintf("ipvsadm -Lnc: %s %s -> %s %s, %d s left", c.Client, c.Virtual, c.Destination, c.State, c.Expires)
		if slices.Contains(endingStates, c.State) {
			e.step("connection", object, "the connection from this port is over: a new one from there is scheduled anew", Passes)
			return kernel.Connection{}, false
		}
		e.step("connection", object, "IPVS follows this connection: its packets go to its endpoint, whatever scheduler and weights say", Passes)
		return c, true
	}
	e.step("connection", "ipvsadm -Lnc", "IPVS follows no connection from this port: it is a new one", Passes)
	return kernel.Connection{}, false
}

// others tells of a client's open connections, for which what follows does not hold.
func (e *explaining) others() {
	if !e.q.From.IsValid() || e.q.FromPort != 0 {
		return
	}
	there := map[string]bool{}
	for _, c := range e.k.Connections {
		if c.Client.Addr() == e.q.From && c.Client.Port() != 0 && c.Virtual == e.q.To.Addr && !slices.Contains(endingStates, c.State) {
			there[c.Destination.String()] = true
		}
	}
	if len(there) > 0 {
		e.step("connection", "ipvsadm -Lnc", "open connections of this client go on to "+strings.Join(sortedNames(there), ", ")+
			"; what follows is for a new one (give --from ADDRESS:PORT for one of them)", Passes)
	}
}

// goOn follows a connection that exists to its endpoint.
func (e *explaining) goOn(p *packet, server kernel.ObservedServer, c kernel.Connection) {
	i := slices.IndexFunc(server.Destinations, func(d kernel.ObservedDestination) bool { return d.Addr == c.Destination })
	if i < 0 {
		e.fail("ipvs", "ipvsadm -L "+server.Key.String(),
			fmt.Sprintf("the connection's endpoint %s is no destination of %s any more: IPVS ends the connection", c.Destination, server.Key))
		return
	}
	e.reach(*p, server.Destinations[i])
	e.stopped = len(e.out.Endpoints) == 0
}
