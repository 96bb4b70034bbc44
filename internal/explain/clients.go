package explain

import (
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// TCP states of IPVS connections: the client has not confirmed the connection yet, or it has.
var (
	halfOpenStates = []string{"SYN_RECV"}
	openStates     = []string{"ESTABLISHED", "FIN_WAIT", "TIME_WAIT", "CLOSE_WAIT", "LAST_ACK"}
)

// HalfOpen reports whether the client of a TCP connection has not confirmed it yet.
func HalfOpen(c kernel.Connection) bool { return slices.Contains(halfOpenStates, c.State) }

// Complete reports whether the client of a TCP connection has confirmed it.
func Complete(c kernel.Connection) bool { return slices.Contains(openStates, c.State) }

// maxOutsiders limits the clients that Outsiders returns.
const maxOutsiders = 32

// Outsiders returns clients of TCP connections, without this node. Clients with half-open connections come first.
func (k *Kernel) Outsiders() (clients []netip.Addr) {
	seen := map[netip.Addr]bool{}
	for _, take := range []func(kernel.Connection) bool{HalfOpen, Complete} {
		for _, c := range k.Connections {
			if addr := c.Client.Addr(); take(c) && !seen[addr] && len(clients) < maxOutsiders && !k.IsLocal(addr) {
				seen[addr], clients = true, append(clients, addr)
			}
		}
	}
	return clients
}
