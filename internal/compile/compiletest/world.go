package compiletest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// World contains the values from which random Services are drawn.
type World struct {
	Names []string
	// ClusterIPs and External are the addresses that Services ask for. External also contains addresses of nodes.
	ClusterIPs, External map[inet.Family][]string
	Ports, NodePorts     []uint16
	Protocols            []inet.Protocol
	Pods                 map[inet.Family][]string
	Ranges               []string
	// Own contains the addresses that this node's interfaces may have. Nodes maps each node of the cluster to its
	// addresses.
	Own   []string
	Nodes map[string][]string
	Zones []string
}

// Small is a world in which Services often claim the same address, share pods, ask for addresses of nodes, and have endpoints at each
// other's addresses.
var Small = World{
	Names: []string{"a", "b", "c", "d", "e"},
	ClusterIPs: map[inet.Family][]string{
		inet.IPv4: {"10.96.0.1", "10.96.0.2", "10.96.0.3"},
		inet.IPv6: {"fd00:10:96::1", "fd00:10:96::2"},
	},
	External: map[inet.Family][]string{
		inet.IPv4: {"203.0.113.1", "203.0.113.2", "192.0.2.1", "192.0.2.2", "192.0.2.3", "10.96.0.1"},
		inet.IPv6: {"2001:db8::1", "fd00:2::1", "fd00:2::2"},
	},
	Ports:     []uint16{80, 443, 53},
	NodePorts: []uint16{30080, 30443, 80, 32000},
	Protocols: []inet.Protocol{inet.TCP, inet.UDP, inet.SCTP},
	Pods: map[inet.Family][]string{
		inet.IPv4: {"10.244.0.1", "10.244.0.2", "10.244.0.3", "10.244.1.1", "169.254.1.1"},
		inet.IPv6: {"fd00:10:244::1", "fd00:10:244::2", "fd00:10:244::3", "fe80::1"},
	},
	Ranges: []string{"198.51.100.0/24", "198.51.100.7/32", "192.0.2.0/24", "0.0.0.0/0", "2001:db8:1::/48", "fd00:2::/64", "::/0"},
	Own:    []string{"192.0.2.1", "10.244.0.254", "203.0.113.2", "fd00:2::1"},
	Nodes: map[string][]string{
		Node:     {"192.0.2.1", "fd00:2::1"},
		"node-b": {"192.0.2.2", "fd00:2::2"},
		"node-c": {"192.0.2.3", "10.96.0.3", "192.0.2.2"},
	},
	Zones: []string{"zone-1", "zone-2"},
}

// Services draws some Services from the small world.
func Services(t *rapid.T, label string) map[model.ServiceID]*model.Service {
	services := map[model.ServiceID]*model.Service{}
	for _, name := range rapid.SliceOfDistinct(rapid.SampledFrom(Small.Names), rapid.ID[string]).Draw(t, label+" names") {
		svc := Small.Service(name, random(t, label+" "+name))
		services[svc.ID] = svc
	}
	return services
}

// random returns a random source for many small decisions, seeded with one number from rapid. Drawing every field would take most of a test's time.
func random(t *rapid.T, label string) *rand.Rand {
	return rand.New(rand.NewPCG(rapid.Uint64().Draw(t, label), 0))
}

// Service returns a random Service with the given name.
func (w World) Service(name string, r *rand.Rand) *model.Service {
	svc := &model.Service{
		ID:            model.ServiceID{Namespace: "default", Name: name},
		Created:       Epoch.Add(time.Duration(r.IntN(2)) * time.Hour),
		InternalLocal: r.IntN(4) == 0,
		ExternalLocal: r.IntN(3) == 0,
	}
	if r.IntN(4) == 0 {
		svc.AffinityTimeout = 3 * time.Hour
		svc.Balancing.AllPorts = r.IntN(2) == 0
	}
	first := pick(r, inet.Families)
	svc.ClusterIPs = []netip.Addr{w.address(w.ClusterIPs, first, r)}
	if r.IntN(2) == 0 {
		svc.ClusterIPs = append(svc.ClusterIPs, w.address(w.ClusterIPs, other(first), r))
	}
	if r.IntN(16) == 0 { // a Service range that overlaps with the nodes' addresses
		svc.ClusterIPs[0] = w.address(w.External, first, r)
	}
	for i := range 1 + r.IntN(3) {
		port := model.ServicePort{Name: fmt.Sprintf("p%d", i), Protocol: pick(r, w.Protocols), Port: pick(r, w.Ports)}
		if r.IntN(2) == 0 {
			port.NodePort = pick(r, w.NodePorts)
		}
		svc.Ports = append(svc.Ports, port)
	}
	w.fromOutside(svc, r)
	for i := range r.IntN(4) {
		svc.Slices = append(svc.Slices, w.slice(fmt.Sprintf("%s-%d", name, i), svc.Ports, r))
		if svc.Balancing.AllPorts && r.IntN(8) > 0 { // ports that differ from their targets prevent AllPorts
			svc.Slices[i].Ports = unmapped(svc.Ports)
		}
	}
	return svc
}

// unmapped returns target ports that equal the ports.
func unmapped(ports []model.ServicePort) []model.EndpointPort {
	list := make([]model.EndpointPort, len(ports))
	for i, p := range ports {
		list[i] = model.EndpointPort{Name: p.Name, Protocol: p.Protocol, Port: p.Port}
	}
	return list
}

func (w World) fromOutside(svc *model.Service, r *rand.Rand) {
	for range r.IntN(3) {
		svc.ExternalIPs = append(svc.ExternalIPs, w.address(w.External, pick(r, inet.Families), r))
	}
	if r.IntN(2) == 0 {
		return
	}
	for range r.IntN(3) {
		svc.LoadBalancerIPs = append(svc.LoadBalancerIPs, w.address(w.External, pick(r, inet.Families), r))
	}
	for range r.IntN(3) {
		svc.SourceRanges = append(svc.SourceRanges, netip.MustParsePrefix(pick(r, w.Ranges)))
	}
	slices.SortFunc(svc.SourceRanges, netip.Prefix.Compare)
	svc.SourceRanges = slices.Compact(svc.SourceRanges)
	if svc.ExternalLocal {
		svc.HealthCheckPort = 32000
	}
}

func (w World) address(from map[inet.Family][]string, f inet.Family, r *rand.Rand) netip.Addr {
	return netip.MustParseAddr(pick(r, from[f]))
}

func other(f inet.Family) inet.Family {
	if f == inet.IPv4 {
		return inet.IPv6
	}
	return inet.IPv4
}

func (w World) slice(name string, ports []model.ServicePort, r *rand.Rand) *model.EndpointSlice {
	s := &model.EndpointSlice{Name: name, Family: pick(r, inet.Families)}
	for i, p := range ports {
		if r.IntN(8) > 0 {
			s.Ports = append(s.Ports, model.EndpointPort{Name: p.Name, Protocol: p.Protocol, Port: uint16(8080 + r.IntN(2)*i)})
		}
	}
	hints := r.IntN(2) == 0
	for range r.IntN(4) {
		e := model.Endpoint{Addr: w.endpoint(s.Family, r), Node: pick(r, []string{Node, "node-b", ""})}
		e.Ready, e.Terminating = r.IntN(3) > 0, r.IntN(4) == 0
		e.Serving = e.Ready || r.IntN(2) == 0
		e.Hints = &model.Hints{}
		if hints && r.IntN(8) > 0 {
			e.Hints.ForZones = []string{pick(r, w.Zones)}
		}
		if hints && r.IntN(2) == 0 {
			e.Hints.ForNodes = []string{pick(r, []string{Node, "node-b"})}
		}
		if e.Hints.Equal(&model.Hints{}) {
			e.Hints = nil
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// endpoint returns the address of a pod or, occasionally, an address that Services also ask for.
func (w World) endpoint(f inet.Family, r *rand.Rand) netip.Addr {
	switch r.IntN(12) {
	case 0:
		return w.address(w.ClusterIPs, f, r)
	case 1:
		return w.address(w.External, f, r)
	}
	return w.address(w.Pods, f, r)
}

func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }
