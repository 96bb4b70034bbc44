package kubeproxy

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

type port struct {
	name         string
	protocol     cluster.Protocol
	port, target uint16
	nodePort     uint16
}

var (
	http = port{name: "http", protocol: cluster.TCP, port: 80, target: 8080}
	dns  = port{name: "dns", protocol: cluster.UDP, port: 53, target: 5353}
	logs = port{name: "logs", protocol: cluster.UDP, port: 514, target: 5514}
)

// atNodes returns the port with a node port.
func (p port) atNodes(number uint16) port { p.nodePort = number; return p }

// service is a dual-stack Service with its slices. Its number decides its addresses.
type service struct {
	name      string
	number    int
	kind      string // "" is ClusterIP
	ports     []port
	spec      []string // further lines
	balancer  []string // addresses of its load balancer
	endpoints []*cluster.Pod
}

// balancers are the ranges of load balancers' and external addresses.
var balancers = map[cluster.Family]netip.Prefix{
	cluster.V4: netip.MustParsePrefix("203.0.113.0/24"),
	cluster.V6: netip.MustParsePrefix("2001:db8:cb::/64"),
}

func define(name string, number int, endpoints ...*cluster.Pod) service {
	return service{name: name, number: number, ports: []port{http}, endpoints: endpoints}
}

// defineBalancer is define for type LoadBalancer, with node ports only where a port names one.
func defineBalancer(name string, number int, endpoints ...*cluster.Pod) service {
	s := define(name, number, endpoints...).with("allocateLoadBalancerNodePorts: false")
	s.kind, s.balancer = "LoadBalancer", []string{externalIP(cluster.V4, number).String(), externalIP(cluster.V6, number).String()}
	return s
}

// with returns the Service with a further line in its spec.
func (s service) with(line string) service {
	s.spec = append(s.spec[:len(s.spec):len(s.spec)], line)
	return s
}

// to returns the Service with other endpoints.
func (s service) to(endpoints ...*cluster.Pod) service {
	s.endpoints = endpoints
	return s
}

func (s service) ip(f cluster.Family) netip.Addr {
	if f == cluster.V6 {
		return netip.MustParseAddr(fmt.Sprintf("fd00:10:96::1%02x", s.number))
	}
	return netip.MustParseAddr(fmt.Sprintf("10.96.1.%d", s.number))
}

func externalIP(f cluster.Family, number int) netip.Addr {
	return cluster.Prefixes{V4: balancers[cluster.V4], V6: balancers[cluster.V6]}.Addr(f, number)
}

// at is a port at the ClusterIP.
func (s service) at(f cluster.Family, p port) string {
	return netip.AddrPortFrom(s.ip(f), p.port).String()
}

// atBalancer is a port at the address of the load balancer, or the external one.
func (s service) atBalancer(f cluster.Family, p port) string {
	return netip.AddrPortFrom(externalIP(f, s.number), p.port).String()
}

func (s service) manifest() string { return s.object() + s.slices() }

func (s service) object() string {
	var b strings.Builder
	fmt.Fprintf(&b, `
apiVersion: v1
kind: Service
metadata: {name: %s}
spec:
  type: %s
  clusterIP: %q
  clusterIPs: [%q, %q]
  ipFamilies: [IPv4, IPv6]
  ipFamilyPolicy: RequireDualStack
`, s.name, cmp.Or(s.kind, "ClusterIP"), s.ip(cluster.V4), s.ip(cluster.V4), s.ip(cluster.V6))
	for _, line := range s.spec {
		fmt.Fprintf(&b, "  %s\n", line)
	}
	b.WriteString("  ports:\n")
	for _, p := range s.ports {
		fmt.Fprintf(&b, "  - {name: %s, protocol: %s, port: %d", p.name, p.protocol, p.port)
		if p.nodePort > 0 {
			fmt.Fprintf(&b, ", nodePort: %d", p.nodePort)
		}
		b.WriteString("}\n")
	}
	if len(s.balancer) > 0 {
		fmt.Fprintf(&b, "status: {loadBalancer: {ingress: [{ip: \"%s\"}]}}\n", strings.Join(s.balancer, `"}, {ip: "`))
	}
	return b.String() + "---"
}

func (s service) slices() string {
	var b strings.Builder
	for _, f := range []cluster.Family{cluster.V4, cluster.V6} {
		fmt.Fprintf(&b, `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s-v%d, labels: {kubernetes.io/service-name: %s}}
addressType: %s
ports:
`, s.name, f, s.name, f)
		for _, p := range s.ports {
			fmt.Fprintf(&b, "- {name: %s, protocol: %s, port: %d}\n", p.name, p.protocol, p.target)
		}
		b.WriteString("endpoints: [")
		for _, e := range s.endpoints {
			fmt.Fprintf(&b, "{addresses: [%q], nodeName: %s, conditions: {ready: true}},", e.Addr(f), e.Node.Name)
		}
		b.WriteString("]\n---")
	}
	return b.String()
}
