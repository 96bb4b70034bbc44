// Package compiletest makes Services for tests: by hand in few words, and at random from a world so small that they collide.
//
// Only tests import it.
package compiletest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// Node is the node that Config is for.
const Node = "node-a"

// Config serves both families and knows the pods by their ranges.
func Config() compile.Config {
	return compile.Config{
		Node:          Node,
		Families:      inet.Families,
		Scheduler:     "rr",
		MasqueradeBit: 14,
		Local: compile.LocalDetector{CIDRs: []netip.Prefix{
			netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/56"),
		}},
	}
}

// Epoch is when the first Service was created.
var Epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Service makes one with a TCP port 80 and ready endpoints on port 8080.
func Service(name, clusterIP string, endpoints ...string) *model.Service {
	ip := netip.MustParseAddr(clusterIP)
	slice := &model.EndpointSlice{
		Name:   name + "-1",
		Family: inet.FamilyOf(ip),
		Ports:  []model.EndpointPort{{Name: "http", Protocol: inet.TCP, Port: 8080}},
	}
	for _, e := range endpoints {
		slice.Endpoints = append(slice.Endpoints, model.Endpoint{
			Addr: netip.MustParseAddr(e), Ready: true, Serving: true, Node: Node,
		})
	}
	return &model.Service{
		ID:         model.ServiceID{Namespace: "default", Name: name},
		Created:    Epoch,
		ClusterIPs: []netip.Addr{ip},
		Ports:      []model.ServicePort{{Name: "http", Protocol: inet.TCP, Port: 80}},
		Slices:     []*model.EndpointSlice{slice},
	}
}

// Many makes n Services with as many ready endpoints each; every one on its own ClusterIP.
func Many(n, endpoints int) map[model.ServiceID]*model.Service {
	services := make(map[model.ServiceID]*model.Service, n)
	for i := range n {
		svc := Service(fmt.Sprintf("svc-%05d", i), fmt.Sprintf("10.%d.%d.%d", 96+i>>16, i>>8&255, i&255))
		for j := range endpoints {
			svc.Slices[0].Endpoints = append(svc.Slices[0].Endpoints, Ready(Pod(i*endpoints+j)))
		}
		services[svc.ID] = svc
	}
	return services
}

// Pod is the address of the n-th pod.
func Pod(n int) netip.Addr { return netip.AddrFrom4([4]byte{11, byte(n >> 16), byte(n >> 8), byte(n)}) }

// Ready is a ready endpoint on another node.
func Ready(addr netip.Addr) model.Endpoint {
	return model.Endpoint{Addr: addr, Ready: true, Serving: true, Node: "node-b"}
}

// WithEndpoint is the Service with one endpoint more, as a new value.
func WithEndpoint(svc *model.Service, e model.Endpoint) *model.Service {
	changed, slice := *svc, *svc.Slices[0]
	slice.Endpoints = append(slices.Clone(slice.Endpoints), e)
	changed.Slices = []*model.EndpointSlice{&slice}
	return &changed
}

// World is where random Services live.
type World struct {
	Names     []string
	IPs4      []string
	IPs6      []string
	Ports     []uint16
	Protocols []inet.Protocol
	Pods4     []string
	Pods6     []string
}

// Small is a world in which Services often claim the same, and pods serve several.
var Small = World{
	Names:     []string{"a", "b", "c", "d", "e"},
	IPs4:      []string{"10.96.0.1", "10.96.0.2", "10.96.0.3"},
	IPs6:      []string{"fd00:10:96::1", "fd00:10:96::2"},
	Ports:     []uint16{80, 443, 53},
	Protocols: []inet.Protocol{inet.TCP, inet.UDP, inet.SCTP},
	Pods4:     []string{"10.244.0.1", "10.244.0.2", "10.244.0.3", "10.244.1.1", "169.254.1.1"},
	Pods6:     []string{"fd00:10:244::1", "fd00:10:244::2", "fd00:10:244::3", "fe80::1"},
}

// Services draws some Services of the small world.
func Services(t *rapid.T, label string) map[model.ServiceID]*model.Service {
	services := map[model.ServiceID]*model.Service{}
	for _, name := range rapid.SliceOfDistinct(rapid.SampledFrom(Small.Names), rapid.ID[string]).Draw(t, label+" names") {
		svc := Small.Service(name, rand.New(rand.NewPCG(rapid.Uint64().Draw(t, label+" "+name), 0)))
		services[svc.ID] = svc
	}
	return services
}

// Service makes a random Service of that name. One number from rapid decides it all: drawing every field would spend the
// time of the test on drawing.
func (w World) Service(name string, r *rand.Rand) *model.Service {
	svc := &model.Service{
		ID:      model.ServiceID{Namespace: "default", Name: name},
		Created: Epoch.Add(time.Duration(r.IntN(2)) * time.Hour),
	}
	if r.IntN(4) == 0 {
		svc.AffinityTimeout = 3 * time.Hour
	}
	if r.IntN(4) > 0 {
		svc.ClusterIPs = append(svc.ClusterIPs, netip.MustParseAddr(pick(r, w.IPs4)))
	}
	if len(svc.ClusterIPs) == 0 || r.IntN(2) == 0 {
		svc.ClusterIPs = append(svc.ClusterIPs, netip.MustParseAddr(pick(r, w.IPs6)))
	}
	for i := range 1 + r.IntN(3) {
		svc.Ports = append(svc.Ports, model.ServicePort{
			Name: fmt.Sprintf("p%d", i), Protocol: pick(r, w.Protocols), Port: pick(r, w.Ports),
		})
	}
	for i := range r.IntN(4) {
		svc.Slices = append(svc.Slices, w.slice(fmt.Sprintf("%s-%d", name, i), svc.Ports, r))
	}
	return svc
}

func (w World) slice(name string, ports []model.ServicePort, r *rand.Rand) *model.EndpointSlice {
	s := &model.EndpointSlice{Name: name, Family: pick(r, inet.Families)}
	pods := w.Pods4
	if s.Family == inet.IPv6 {
		pods = w.Pods6
	}
	for i, p := range ports {
		if r.IntN(8) > 0 {
			s.Ports = append(s.Ports, model.EndpointPort{Name: p.Name, Protocol: p.Protocol, Port: uint16(8080 + r.IntN(2)*i)})
		}
	}
	for range r.IntN(4) {
		e := model.Endpoint{Addr: netip.MustParseAddr(pick(r, pods)), Node: pick(r, []string{Node, "node-b", ""})}
		e.Ready, e.Terminating = r.IntN(3) > 0, r.IntN(4) == 0
		e.Serving = e.Ready || r.IntN(2) == 0
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

// Between is the change from one set of Services to another.
func Between(from, to map[model.ServiceID]*model.Service) map[model.ServiceID]*model.Service {
	changes := maps.Clone(to)
	if changes == nil {
		changes = map[model.ServiceID]*model.Service{}
	}
	for id := range from {
		if to[id] == nil {
			changes[id] = nil
		}
	}
	return changes
}
