package view

import (
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Forwarded is what an agent in user space knows, and the kernel knows on the other data planes.
type Forwarded struct {
	Servers []ForwardedServer `json:"servers"`
	// Connections is empty unless the request asks for them.
	Connections []ForwardedConnection `json:"connections"`
}

// ForwardedTraffic counts the traffic since a port was opened.
type ForwardedTraffic struct {
	Total      uint64 `json:"totalConnections"`
	PacketsIn  uint64 `json:"packetsIn"`
	PacketsOut uint64 `json:"packetsOut"`
	BytesIn    uint64 `json:"bytesIn"`
	BytesOut   uint64 `json:"bytesOut"`
}

// ForwardedServer is a virtual server that the agent's process serves.
type ForwardedServer struct {
	Address   netip.AddrPort `json:"address"`
	Protocol  string         `json:"protocol"`
	Scheduler string         `json:"scheduler"`
	ForwardedTraffic
	Endpoints []ForwardedEndpoint `json:"endpoints"`
}

// ForwardedEndpoint is an endpoint of a virtual server.
type ForwardedEndpoint struct {
	Address netip.AddrPort `json:"address"`
	Weight  uint32         `json:"weight"`
	Connections
	ForwardedTraffic
}

// ForwardedConnection is a connection, a UDP flow or, with client port 0, the endpoint of a client with affinity.
type ForwardedConnection struct {
	Protocol string         `json:"protocol"`
	Client   netip.AddrPort `json:"client"`
	Virtual  netip.AddrPort `json:"virtual"`
	Endpoint netip.AddrPort `json:"endpoint"`
	State    string         `json:"state"`
	Expires  uint64         `json:"expiresSeconds"`
}

// ForwardedOf returns what an agent's process forwards.
func ForwardedOf(servers []kernel.TableServer, connections []kernel.Connection) *Forwarded {
	f := &Forwarded{make([]ForwardedServer, len(servers)), make([]ForwardedConnection, len(connections))}
	for i, s := range servers {
		one := ForwardedServer{s.Key.Addr, s.Key.Protocol.String(), s.Scheduler, trafficOf(s.Stats), []ForwardedEndpoint{}}
		for _, d := range s.Destinations {
			open := Connections{Active: uint64(d.Active), Inactive: uint64(d.Inactive)}
			one.Endpoints = append(one.Endpoints, ForwardedEndpoint{d.Addr, d.Weight, open, trafficOf(d.Stats)})
		}
		f.Servers[i] = one
	}
	for i, c := range connections {
		f.Connections[i] = ForwardedConnection{c.Protocol, c.Client, c.Virtual, c.Destination, c.State, c.Expires}
	}
	return f
}

func trafficOf(c kernel.Counters) ForwardedTraffic {
	return ForwardedTraffic{c.Connections, c.InPackets, c.OutPackets, c.InBytes, c.OutBytes}
}

func (t ForwardedTraffic) counters() kernel.Counters {
	return kernel.Counters{Connections: t.Total, InPackets: t.PacketsIn, OutPackets: t.PacketsOut, InBytes: t.BytesIn, OutBytes: t.BytesOut}
}

// Observed returns the virtual servers as if the kernel had them, and their counters.
func (f *Forwarded) Observed() (servers map[kernel.ServerKey]kernel.ObservedServer, counts map[kernel.ServerKey]kernel.Traffic) {
	servers, counts = map[kernel.ServerKey]kernel.ObservedServer{}, map[kernel.ServerKey]kernel.Traffic{}
	for _, s := range f.Servers {
		protocol, err := inet.ParseProtocol(s.Protocol)
		if err != nil {
			continue // a newer agent
		}
		key := kernel.ServerKey{Addr: s.Address, Protocol: protocol}
		server := kernel.ObservedServer{Server: kernel.Server{Key: key, Scheduler: s.Scheduler}}
		traffic := kernel.Traffic{Counters: s.counters(), Endpoints: map[netip.AddrPort]kernel.TableDestination{}}
		for _, e := range s.Endpoints {
			active, inactive := uint32(e.Active), uint32(e.Inactive)
			server.Destinations = append(server.Destinations, kernel.ObservedDestination{
				Destination: kernel.Destination{Addr: e.Address, Weight: e.Weight}, Stats: kernel.DestinationStats{Active: active, Inactive: inactive},
			})
			traffic.Endpoints[e.Address] = kernel.TableDestination{
				Addr: e.Address, Weight: e.Weight, Active: active, Inactive: inactive, Stats: e.counters(),
			}
		}
		servers[key], counts[key] = server, traffic
	}
	return servers, counts
}

// Tracked returns the connections as if the kernel tracked them.
func (f *Forwarded) Tracked() []kernel.Connection {
	all := make([]kernel.Connection, len(f.Connections))
	for i, c := range f.Connections {
		all[i] = kernel.Connection{Protocol: c.Protocol, Client: c.Client, Virtual: c.Virtual, Destination: c.Endpoint, State: c.State, Expires: c.Expires}
	}
	return all
}
