package coexist

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

type port struct {
	protocol cluster.Protocol
	port     uint16
	target   uint16
}

var (
	http  = port{cluster.TCP, 80, 8080}
	dns   = port{cluster.UDP, 53, 5353}
	ports = []port{http, dns}
)

var balancers = map[cluster.Family]netip.Prefix{
	cluster.V4: netip.MustParsePrefix("203.0.113.0/24"),
	cluster.V6: netip.MustParsePrefix("2001:db8:cb::/64"),
}

// service is a dual-stack LoadBalancer Service. All its addresses contain its number.
type service struct {
	name   string
	number int
	local  bool // externalTrafficPolicy
	server *cluster.Pod
}

// healthPort is the health check port of the Service with external policy Local.
const healthPort = 32003

func (w *world) nearService() service { return service{name: "near", number: 1, server: w.near} }
func (w *world) farService() service  { return service{name: "far", number: 2, server: w.far} }
func (w *world) localService() service {
	return service{name: "local", number: 3, server: w.near, local: true}
}

func (w *world) emptyService() service { return service{name: "empty", number: 4} }

func (w *world) services() []service {
	return []service{w.nearService(), w.farService(), w.localService(), w.emptyService()}
}

func (s service) ip(f cluster.Family) netip.Addr {
	pattern := map[cluster.Family]string{cluster.V4: "10.96.1.%d", cluster.V6: "fd00:10:96::1%02d"}[f]
	return netip.MustParseAddr(fmt.Sprintf(pattern, s.number))
}

func (s service) balancer(f cluster.Family) netip.Addr {
	pattern := map[cluster.Family]string{cluster.V4: "203.0.113.%d", cluster.V6: "2001:db8:cb::%d"}[f]
	return netip.MustParseAddr(fmt.Sprintf(pattern, s.number))
}

func (s service) nodePort(p port) uint16 {
	return uint16(map[cluster.Protocol]int{cluster.TCP: 30000, cluster.UDP: 30100}[p.protocol] + s.number)
}

func (s service) at(f cluster.Family, p port) string {
	return netip.AddrPortFrom(s.ip(f), p.port).String()
}

func (s service) atBalancer(f cluster.Family, p port) string {
	return netip.AddrPortFrom(s.balancer(f), p.port).String()
}

func (s service) atNode(f cluster.Family, p port, n *cluster.Node) string {
	return n.At(f, s.nodePort(p))
}

func (w *world) manifests() string {
	var b strings.Builder
	for _, s := range w.services() {
		b.WriteString(s.manifest())
	}
	return b.String()
}

func (s service) manifest() string {
	var b strings.Builder
	policy := "Cluster"
	if s.local {
		policy = fmt.Sprintf("Local\n  healthCheckNodePort: %d", healthPort)
	}
	fmt.Fprintf(&b, `
apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: default}
spec:
  type: LoadBalancer
  clusterIP: "%[2]s"
  clusterIPs: ["%[2]s", "%[3]s"]
  ipFamilies: [IPv4, IPv6]
  ipFamilyPolicy: RequireDualStack
  externalTrafficPolicy: %[4]s
  ports:
`, s.name, s.ip(cluster.V4), s.ip(cluster.V6), policy)
	for _, p := range ports {
		fmt.Fprintf(&b, "  - {name: %s, protocol: %s, port: %d, nodePort: %d}\n", nameOf(p), p.protocol, p.port, s.nodePort(p))
	}
	fmt.Fprintf(&b, "status: {loadBalancer: {ingress: [{ip: %q}, {ip: %q}]}}\n---", s.balancer(cluster.V4), s.balancer(cluster.V6))
	for _, f := range []cluster.Family{cluster.V4, cluster.V6} {
		b.WriteString(s.slice(f))
	}
	return b.String()
}

func (s service) slice(f cluster.Family) string {
	var b strings.Builder
	fmt.Fprintf(&b, `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-v%[2]d, namespace: default, labels: {kubernetes.io/service-name: %[1]s}}
addressType: %[3]s
ports:
`, s.name, f, f)
	for _, p := range ports {
		fmt.Fprintf(&b, "- {name: %s, protocol: %s, port: %d}\n", nameOf(p), p.protocol, p.target)
	}
	if s.server == nil {
		b.WriteString("endpoints: []\n---")
		return b.String()
	}
	fmt.Fprintf(&b, "endpoints: [{addresses: [%q], nodeName: %s, conditions: {ready: true}}]\n---",
		s.server.Addr(f), s.server.Node.Name)
	return b.String()
}

func nameOf(p port) string { return strings.ToLower(string(p.protocol)) }

// path is a request from a host to an address. The server must see source as the client's address.
type path struct {
	from   *cluster.Host
	proto  cluster.Protocol
	to     string
	server string
	source netip.Addr
}

// paths returns the paths through node-1 that docs/services.md describes.
func (w *world) paths(f cluster.Family) (all []path) {
	for _, s := range []service{w.nearService(), w.farService(), w.localService()} {
		for _, p := range ports {
			for _, from := range []*cluster.Host{w.client.Host, w.node1.Host, w.outside} {
				keeps := s.local && from != w.node1.Host
				all = append(all,
					path{from, p.protocol, s.at(f, p), s.server.Name, w.source(f, from, from == w.client.Host)},
					path{from, p.protocol, s.atNode(f, p, w.node1), s.server.Name, w.source(f, from, keeps)},
					path{from, p.protocol, s.atBalancer(f, p), s.server.Name, w.source(f, from, keeps)})
			}
		}
	}
	return all
}

// source returns the client address that a server sees.
func (w *world) source(f cluster.Family, from *cluster.Host, keeps bool) netip.Addr {
	if keeps {
		return from.Addr(f)
	}
	return w.node1.Addr(f)
}

func (p path) walk() error { return p.judge(p.from.Probe(p.proto, p.to, slowly)) }

func (p path) judge(r cluster.Result) error {
	switch {
	case r.Outcome != cluster.Answered:
		return fmt.Errorf("%s -> %s %s: %s", p.from.Name, p.to, p.proto, r)
	case r.Reply.Server != p.server || r.Reply.Source != p.source:
		return fmt.Errorf("%s -> %s %s: want %s to see %s; %s saw %s", p.from.Name, p.to, p.proto,
			p.server, p.source, r.Reply.Server, r.Reply.Source)
	}
	return nil
}

func (w *world) mustPass(t *testing.T, families ...cluster.Family) {
	t.Helper()
	for _, f := range families {
		w.mustPassBut(t, f, nil)
	}
}

func (w *world) mustPassBut(t *testing.T, f cluster.Family, lost func(*world, path) bool) {
	t.Helper()
	for _, p := range w.paths(f) {
		if lost != nil && lost(w, p) {
			continue
		}
		if err := p.walk(); err != nil {
			t.Error(err)
		}
	}
}
