package machine

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// tracked is a connection that conntrack translates from a virtual server to an endpoint.
type tracked struct {
	kernel.Connection
	server kernel.ServerKey
}

// withAffinity returns the virtual servers with session affinity among those that concerns selects. A nil concerns selects none.
func withAffinity(servers map[kernel.ServerKey]kernel.ObservedServer, concerns func(kernel.ServerKey) bool) (keys []kernel.ServerKey) {
	for _, key := range slices.SortedFunc(maps.Keys(servers), kernel.ServerKey.Compare) {
		if concerns != nil && concerns(key) && servers[key].Flags&kernel.FlagPersistent != 0 {
			keys = append(keys, key)
		}
	}
	return keys
}

// ofServers returns a function that passes on only the connections through virtual servers. The source of a connection's replies is its
// endpoint. If that is the virtual server's own address, the connection was not translated, unless an endpoint has this address.
func ofServers(servers map[kernel.ServerKey]kernel.ObservedServer, take func(tracked)) func(kernel.Connection) {
	return func(c kernel.Connection) {
		protocol, err := inet.ParseProtocol(c.Protocol)
		key := kernel.ServerKey{Addr: c.Virtual, Protocol: protocol}
		server, exists := servers[key]
		if !exists {
			key = key.AllPorts()
			server, exists = servers[key]
		}
		if err == nil && exists && (c.Destination != c.Virtual || destination(server, c.Destination) >= 0) {
			take(tracked{c, key})
		}
	}
}

func destination(server kernel.ObservedServer, endpoint netip.AddrPort) int {
	if server.Key == server.Key.AllPorts() {
		endpoint = netip.AddrPortFrom(endpoint.Addr(), 0)
	}
	return slices.IndexFunc(server.Destinations, func(d kernel.ObservedDestination) bool { return d.Addr == endpoint })
}

// tally counts the tracked connections of each endpoint, as IPVS does: an established connection is active, and all others are inactive.
type tally map[tallied]kernel.DestinationStats

type tallied struct {
	server   kernel.ServerKey
	endpoint netip.AddrPort
}

func (t tally) add(c tracked) {
	at := tallied{c.server, c.Destination}
	if c.server == c.server.AllPorts() {
		at.endpoint = netip.AddrPortFrom(c.Destination.Addr(), 0)
	}
	counted := t[at]
	if c.State == "ESTABLISHED" {
		counted.Active++
	} else {
		counted.Inactive++
	}
	t[at] = counted
}

// store sets the connection counts of the destinations. It ignores connections to removed endpoints: nftables keeps no destination for them.
func (t tally) store(servers map[kernel.ServerKey]kernel.ObservedServer) {
	concerned := map[kernel.ServerKey]struct{}{}
	for at := range t {
		concerned[at.server] = struct{}{}
	}
	for key := range concerned {
		server := servers[key]
		server.Destinations = slices.Clone(server.Destinations)
		for i, d := range server.Destinations {
			if counted, is := t[tallied{key, d.Addr}]; is {
				server.Destinations[i].Stats = counted
			}
		}
		servers[key] = server
	}
}
