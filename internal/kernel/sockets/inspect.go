package sockets

import (
	"net/netip"
	"strings"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/forward"
	"github.com/kube-ipvs/kube-ipvs/internal/forward/virtual"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Traffic returns the virtual servers with their counters, as the kernel returns those of IPVS. It calls UDP flows inactive, as IPVS
// does. Its cost does not depend on the number of connections.
func (t *table) Traffic() (servers []kernel.TableServer) {
	served := t.forwarder.Served()
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, s := range t.servers {
		one := served[virtual.Listen(key)] // zero if the port is closed
		shown := kernel.TableServer{
			Key:       kernel.TableKey{Family: key.Family(), Protocol: key.Protocol, Addr: key.Addr},
			Scheduler: s.Scheduler, Flags: s.Flags, Timeout: s.Timeout, Stats: counters(one.Traffic),
		}
		counted := make(map[netip.AddrPort]forward.ServedEndpoint, len(one.Endpoints))
		for _, e := range one.Endpoints {
			counted[e.Addr] = e
		}
		for _, d := range s.Destinations {
			e := counted[d.Addr]
			shown.Destinations = append(shown.Destinations, kernel.TableDestination{
				Addr: d.Addr, Weight: d.Weight, Active: uint32(e.Open), Inactive: uint32(e.Flows), Stats: counters(e.Traffic),
			})
		}
		servers = append(servers, shown)
	}
	return servers
}

// Connections returns the open connections, as the kernel returns those of IPVS.
func (t *table) Connections(now time.Time) (connections []kernel.Connection) {
	for _, c := range t.forwarder.Connections(now) {
		connections = append(connections, kernel.Connection{
			Protocol: strings.ToUpper(string(c.Protocol)), Client: c.Client, Virtual: c.At, Destination: c.Endpoint, State: stateOf(c), Expires: kernel.Seconds(c.Expires),
		})
	}
	return connections
}

// stateOf returns the name that IPVS has for the state.
func stateOf(c forward.Connection) string {
	switch {
	case c.Client.Port() == 0:
		return "NONE"
	case c.Protocol == forward.UDP:
		return "UDP"
	}
	return "ESTABLISHED"
}

func counters(t forward.Traffic) kernel.Counters {
	return kernel.Counters{Connections: t.Connections, InPackets: t.PacketsIn, OutPackets: t.PacketsOut, InBytes: t.BytesIn, OutBytes: t.BytesOut}
}
