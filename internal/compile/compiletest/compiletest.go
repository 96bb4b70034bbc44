// Package compiletest creates Services for tests. They are either explicit, or random with so few possible values
// that they often collide.
//
// Only tests import it.
package compiletest

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// Node is the name of the node in Config.
const Node = "node-a"

// Config returns the configuration of a node that serves both families and detects pods by their ranges.
func Config() compile.Config {
	return compile.Config{
		Host: compile.Host{NodeName: Node, Families: inet.Families},
		Settings: compile.Settings{
			Scheduler:     "rr",
			MasqueradeBit: 14,
			Local: compile.LocalDetector{CIDRs: []netip.Prefix{
				netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/56"),
			}},
		},
	}
}

// Epoch is the creation time of the first Service.
var Epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Service returns a Service with TCP port 80 and ready endpoints on port 8080.
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

// Many returns n Services with the same number of ready endpoints, each with its own ClusterIP.
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

// Pod returns the address of the n-th pod.
func Pod(n int) netip.Addr { return netip.AddrFrom4([4]byte{11, byte(n >> 16), byte(n >> 8), byte(n)}) }

// Ready returns a ready endpoint on another node.
func Ready(addr netip.Addr) model.Endpoint {
	return model.Endpoint{Addr: addr, Ready: true, Serving: true, Node: "node-b"}
}

// Large returns a Service with many ports and endpoints of both families. Each of its slices has 100 ports and 1,000 endpoints, the most
// that the API server accepts.
func Large(name string, ports, endpoints int) *model.Service {
	svc := Service(name, "10.96.0.9")
	svc.ClusterIPs = append(svc.ClusterIPs, netip.MustParseAddr("fd00:10:96::9"))
	svc.Ports, svc.Slices = nil, nil
	var to []model.EndpointPort
	for i := range ports {
		p := model.ServicePort{Name: fmt.Sprint("p", i), Protocol: inet.TCP, Port: uint16(1 + i)}
		svc.Ports = append(svc.Ports, p)
		to = append(to, model.EndpointPort{Name: p.Name, Protocol: p.Protocol, Port: p.Port})
	}
	for _, f := range inet.Families {
		var all []model.Endpoint
		for i := range endpoints {
			e := Ready(Pod(i))
			e.Node = Node
			if f == inet.IPv6 {
				e.Addr = netip.AddrFrom16([16]byte{0: 0xfd, 3: 0x10, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)})
			}
			all = append(all, e)
		}
		for some := range slices.Chunk(to, 100) {
			for few := range slices.Chunk(all, 1000) {
				svc.Slices = append(svc.Slices, &model.EndpointSlice{
					Name: fmt.Sprintf("%s-%d", name, len(svc.Slices)), Family: f, Ports: some, Endpoints: few,
				})
			}
		}
	}
	return svc
}

// WithEndpoint returns a copy of the Service with one more endpoint.
func WithEndpoint(svc *model.Service, e model.Endpoint) *model.Service {
	changed, slice := *svc, *svc.Slices[0]
	slice.Endpoints = append(slices.Clone(slice.Endpoints), e)
	changed.Slices = []*model.EndpointSlice{&slice}
	return &changed
}

// Between returns the changes from one set of Services to another.
func Between(from, to map[model.ServiceID]*model.Service) map[model.ServiceID]*model.Service {
	return between(from, to)
}

func between[K comparable, V any](from, to map[K]*V) map[K]*V {
	changes := map[K]*V{}
	maps.Copy(changes, to)
	for k := range from {
		if to[k] == nil {
			changes[k] = nil
		}
	}
	return changes
}
