package inspect

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// Counts are the counters of virtual servers and of their destinations.
type Counts = map[kernel.ServerKey]kernel.Traffic

// TopList is the JSON document of the command top.
type TopList struct {
	view.Header
	// Agent is true if an agent responded. Unknown lists missing information.
	Agent   bool       `json:"agent"`
	Unknown []string   `json:"unknown"`
	Seconds float64    `json:"seconds"`
	Items   []TopEntry `json:"items"`
}

// Traffic is the average traffic per second.
type Traffic struct {
	Connections float64 `json:"connectionsPerSecond"`
	Packets     float64 `json:"packetsPerSecond"` // in both directions
	BytesIn     float64 `json:"bytesInPerSecond"`
	BytesOut    float64 `json:"bytesOutPerSecond"`
}

// Add adds other traffic.
func (t *Traffic) Add(o Traffic) {
	t.Connections += o.Connections
	t.Packets += o.Packets
	t.BytesIn += o.BytesIn
	t.BytesOut += o.BytesOut
}

// TopEntry is the load of a frontend.
type TopEntry struct {
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name,omitempty"`
	Port      string    `json:"port,omitempty"`
	Kind      view.Kind `json:"kind"`
	// Address is the frontend's address. Server is the address of the virtual server, which may serve all ports.
	Address  netip.AddrPort `json:"address"`
	Protocol string         `json:"protocol"`
	Server   string         `json:"server"`
	view.Connections
	Traffic
	Draining  int           `json:"draining"`
	Endpoints []TopEndpoint `json:"endpoints"`
}

// TopEndpoint is the load of an endpoint.
type TopEndpoint struct {
	Address netip.AddrPort     `json:"address"`
	Pod     string             `json:"pod,omitempty"`
	Node    string             `json:"node,omitempty"`
	State   view.EndpointState `json:"state"`
	view.Connections
	Traffic
	// Share is the endpoint's share of the new connections, or of the open connections if there are no new ones.
	// WeightShare is its share of the total weight. Both range from 0 to 1.
	Share       float64 `json:"share"`
	WeightShare float64 `json:"weightShare"`
}

// TopOf computes the load of Services from two readings of their counters. It sorts by new connections and then by
// open connections, in descending order. If the first reading lacks a virtual server, its traffic counts as 0: it may be
// older than that reading, which can lack virtual servers if another one was deleted meanwhile.
func TopOf(services ServiceList, before, now Counts, seconds float64) TopList {
	list := TopList{Header: view.HeaderOf("TopList"), Agent: services.Agent, Unknown: services.Unknown, Seconds: seconds, Items: []TopEntry{}}
	for _, s := range services.Items {
		for _, f := range s.Frontends {
			count, exists := now[ServerOf(f)]
			if !exists || !f.Ours() {
				continue
			}
			earlier, known := before[ServerOf(f)]
			if !known {
				earlier = count
			}
			list.Items = append(list.Items, topEntry(s, f, earlier, count, seconds))
		}
	}
	slices.SortStableFunc(list.Items, func(a, b TopEntry) int {
		return cmp.Or(cmp.Compare(b.Traffic.Connections, a.Traffic.Connections), cmp.Compare(b.Active, a.Active),
			strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), a.Address.Compare(b.Address), strings.Compare(a.Protocol, b.Protocol))
	})
	return list
}

func topEntry(s view.Service, f view.Frontend, before, now kernel.Traffic, seconds float64) TopEntry {
	entry := TopEntry{
		Namespace: s.Namespace, Name: s.Name, Port: f.Port, Kind: f.Kind, Address: f.Address, Protocol: f.Protocol, Server: ServerOf(f).String(),
		Traffic: TrafficOf(before.Counters, now.Counters, seconds), Draining: count(f, view.Draining), Endpoints: []TopEndpoint{},
	}
	for _, e := range f.Endpoints {
		addr := e.Address
		if f.AllPorts {
			addr = netip.AddrPortFrom(addr.Addr(), 0)
		}
		d, exists := now.Endpoints[addr]
		if !exists {
			continue
		}
		open := view.Connections{Active: uint64(d.Active), Inactive: uint64(d.Inactive)}
		entry.Active, entry.Inactive = entry.Active+open.Active, entry.Inactive+open.Inactive
		entry.Endpoints = append(entry.Endpoints, TopEndpoint{
			Address: e.Address, Pod: e.Pod, Node: e.Node, State: e.State, Connections: open,
			Traffic: TrafficOf(before.Endpoints[addr].Stats, d.Stats, seconds), WeightShare: float64(d.Weight),
		})
	}
	Share(entry.Endpoints, func(e *TopEndpoint) *float64 { return &e.WeightShare }, func(e TopEndpoint) float64 { return e.WeightShare })
	if !Share(entry.Endpoints, func(e *TopEndpoint) *float64 { return &e.Share }, func(e TopEndpoint) float64 { return e.Traffic.Connections }) {
		Share(entry.Endpoints, func(e *TopEndpoint) *float64 { return &e.Share }, func(e TopEndpoint) float64 { return float64(e.Active) })
	}
	return entry
}

// Share sets each item's share of the sum, and reports whether the sum is greater than 0.
func Share[T any](all []T, part func(*T) *float64, of func(T) float64) bool {
	sum := 0.0
	for _, e := range all {
		sum += of(e)
	}
	for i := range all {
		if sum > 0 {
			*part(&all[i]) = of(all[i]) / sum
		}
	}
	return sum > 0
}

// TrafficOf returns the traffic between two readings. The kernel's counters restart at 0 if a virtual server is recreated.
func TrafficOf(before, now kernel.Counters, seconds float64) Traffic {
	if now.Connections < before.Connections || now.InPackets < before.InPackets || now.InBytes < before.InBytes {
		before = kernel.Counters{}
	}
	rate := func(before, now uint64) float64 {
		if seconds <= 0 || now < before {
			return 0
		}
		return float64(now-before) / seconds
	}
	return Traffic{
		Connections: rate(before.Connections, now.Connections), Packets: rate(before.InPackets+before.OutPackets, now.InPackets+now.OutPackets),
		BytesIn: rate(before.InBytes, now.InBytes), BytesOut: rate(before.OutBytes, now.OutBytes),
	}
}
