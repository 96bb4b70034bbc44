package manifest

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// YAML returns the Service and its slices for kubectl apply.
func (s Service) YAML() string { return s.ServiceYAML() + s.SlicesYAML() }

// ServiceYAML returns the Service without its slices.
func (s Service) ServiceYAML() string {
	var fields map[string]any
	convert(s.Service, &fields)
	if len(s.Status.LoadBalancer.Ingress) == 0 {
		delete(fields, "status")
	}
	return text(fields)
}

// SlicesYAML returns the Service's EndpointSlices.
func (s Service) SlicesYAML() string { return s.MoreSlicesYAML("") }

// MoreSlicesYAML returns the EndpointSlices under other names, as additional slices.
func (s Service) MoreSlicesYAML(suffix string) (all string) {
	for _, f := range families {
		if s.has(f) {
			all += text(s.slice(f, suffix))
		}
	}
	return all
}

func (s Service) has(f cluster.Family) bool {
	for _, ip := range s.Spec.ClusterIPs {
		if FamilyOf(ip) == f {
			return true
		}
	}
	return false
}

func text(object any) string { return "---\n" + marshal(object) }

// At returns the ClusterIP of a family, with a port.
func (s Service) At(f cluster.Family, p Port) string { return at(s.Spec.ClusterIPs, f, p) }

// AtBalancer is like At, but for the load balancer's address.
func (s Service) AtBalancer(f cluster.Family, p Port) string { return at(s.Balancer(), f, p) }

// AtExternal is like At, but for the external IP.
func (s Service) AtExternal(f cluster.Family, p Port) string { return at(s.Spec.ExternalIPs, f, p) }

// AtNode returns the node's address with the node port.
func (s Service) AtNode(n *cluster.Node, f cluster.Family) string { return n.At(f, s.NodePort()) }

// NodePort returns the node port that all ports of the Service share.
func (s Service) NodePort() uint16 { return uint16(s.Spec.Ports[0].NodePort) }

// Balancer returns the addresses of the load balancer.
func (s Service) Balancer() (all []string) {
	for _, ingress := range s.Status.LoadBalancer.Ingress {
		if ingress.IP != "" {
			all = append(all, ingress.IP)
		}
	}
	return all
}

func at(ips []string, f cluster.Family, p Port) string {
	for _, ip := range ips {
		if FamilyOf(ip) == f {
			return netip.AddrPortFrom(netip.MustParseAddr(ip), p.Number).String()
		}
	}
	panic(fmt.Sprintf("%v holds no %s address", ips, f))
}

// Ports returns the ports of the Service with their target ports.
func (s Service) Ports() (all []Port) {
	for i, p := range s.Spec.Ports {
		target := s.slice(cluster.V4, "").Ports[i].Port
		all = append(all, Port{Protocol: cluster.Protocol(p.Protocol), Number: uint16(p.Port), Target: uint16(*target)})
	}
	return all
}

// SameOnEveryNode reports whether the Service has the same destinations on every node.
func (s Service) SameOnEveryNode() bool {
	text := s.YAML()
	return !strings.Contains(text, "TrafficPolicy: Local") && !strings.Contains(text, "hints:")
}

// Destinations returns the ready endpoints of a family or, if there are none, the terminating endpoints that still
// serve.
func (s Service) Destinations(f cluster.Family, p Port) []string {
	ready, terminating := []string{}, []string{}
	for _, e := range s.slices[f].Endpoints {
		address := netip.AddrPortFrom(netip.MustParseAddr(e.Addresses[0]), p.Target).String()
		switch c := e.Conditions; {
		case *c.Ready:
			ready = append(ready, address)
		case *c.Serving && *c.Terminating:
			terminating = append(terminating, address)
		}
	}
	if len(ready) > 0 {
		return ready
	}
	return terminating
}
