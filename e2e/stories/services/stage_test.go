package services

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/labtest"
)

var (
	// One number for the three protocols: then the API server lets them share a node port, too.
	http   = port{name: "http", protocol: cluster.TCP, port: 80, target: 8080}
	dns    = port{name: "dns", protocol: cluster.UDP, port: 80, target: 5353}
	diam   = port{name: "diameter", protocol: cluster.SCTP, port: 80, target: 3868}
	all    = []port{http, dns, diam}
	slowly = cluster.Within(10 * time.Second)
)

// stage is the world with who plays on it: a pod with every port on the first node and on the second, clients on the first
// and on the third, which has no endpoint, and clients outside.
type stage struct {
	*world
	node1, node2, node3   *cluster.Node
	client, farClient     *cluster.Pod // on node-1 and node-3
	sameNode, otherNode   *cluster.Pod // serve: web-1 on node-1, web-2 on node-2
	outside, otherOutside *cluster.Host
	servers               map[*cluster.Pod]map[cluster.Protocol]*cluster.Server
	sctpLoaded            error // says that a Service loaded the kernel's SCTP module
	next                  int
}

// shared is the stage that tests play on one after the other.
var shared = cluster.Shared[*stage]{Make: newStage}

func TestMain(m *testing.M) { os.Exit(shared.Run(m)) }

// onStage gives the test the shared stage.
func onStage(t *testing.T) *stage {
	t.Helper()
	labtest.Need(t)
	return shared.On(t)
}

func newStage(t *testing.T) (*stage, error) {
	t.Helper()
	w, err := newWorld(3, 2)
	if err != nil {
		return nil, err
	}
	s := &stage{world: w, node1: w.Nodes[0], node2: w.Nodes[1], node3: w.Nodes[2], outside: w.Clients[0], otherOutside: w.Clients[1]}
	for _, step := range []func() error{
		s.addPods,
		s.addRoutes,
		func() error { return s.startAgents(t) },
		// Before the servers: an SCTP socket loads the module.
		func() error { s.sctpLoaded = s.serveSCTP(t); return nil },
		func() error { return errors.Join(s.serve(http), s.serve(dns), s.serve(diam)) },
	} {
		if err := step(); err != nil {
			return nil, errors.Join(err, w.Close())
		}
	}
	return s, nil
}

func (s *stage) addPods() (err error) {
	pod := func(n *cluster.Node, name string) *cluster.Pod {
		p, failed := n.AddPod(name)
		err = errors.Join(err, failed)
		return p
	}
	s.client, s.farClient = pod(s.node1, "client"), pod(s.node3, "far-client")
	s.sameNode, s.otherNode = pod(s.node1, "web-1"), pod(s.node2, "web-2")
	s.servers = map[*cluster.Pod]map[cluster.Protocol]*cluster.Server{s.sameNode: {}, s.otherNode: {}}
	return err
}

// addRoutes sends everything virtual to node-1 where it comes from outside.
func (s *stage) addRoutes() error {
	ranges := []string{s.Service.V4.String(), s.Service.V6.String(), balancers[cluster.V4].String(), balancers[cluster.V6].String()}
	var err error
	for _, r := range ranges {
		err = errors.Join(err, s.AddRouteVia(r, s.node1))
	}
	return err
}

func (s *stage) startAgents(t *testing.T) error {
	t.Helper()
	for _, node := range s.Nodes {
		s.apply(t, nodeManifest(node))
		if err := s.setNodeAddresses(t.Context(), node, node.V4, node.V6); err != nil {
			return err
		}
		s.startAgent(t, node)
	}
	for _, node := range s.Nodes {
		s.agents[node].AwaitLog(t, 2*patience, "initial sync complete") // the first start loads the kernel's modules
	}
	return nil
}

// serveSCTP makes an SCTP Service and looks whether that loads the kernel's SCTP module.
func (s *stage) serveSCTP(t *testing.T) error {
	t.Helper()
	loaded := func() bool {
		modules, err := os.ReadFile("/proc/modules")
		return err == nil && strings.Contains("\n"+string(modules), "\nsctp ")
	}
	if loaded() { // other tests have used it, or still do
		if out, err := s.Router.Run("modprobe", "-r", "sctp"); err != nil {
			return fmt.Errorf("the SCTP module was loaded before and cannot be unloaded, so that nothing can be said (run this package first): %w %s", err, out)
		}
	}
	svc := s.define("sctp-module", podEndpoint(s.otherNode))
	svc.ports = []port{diam}
	s.change(t, svc)
	defer s.remove(t, svc.manifest())
	if loaded() {
		return errors.New("a Service with an SCTP port loaded the SCTP module")
	}
	return nil
}

// serve starts the servers of a port.
func (s *stage) serve(p port) (err error) {
	for pod, servers := range s.servers {
		server, failed := pod.Listen(p.protocol, p.target)
		servers[p.protocol] = server
		err = errors.Join(err, failed)
	}
	return err
}

// balancers are the ranges of load balancers' and external addresses. The router sends them to node-1.
var balancers = map[cluster.Family]netip.Prefix{
	cluster.V4: netip.MustParsePrefix("203.0.113.0/24"),
	cluster.V6: netip.MustParsePrefix("2001:db8:cb::/64"),
}

// define makes up a Service with the pods behind all ports, with addresses and a node port that nobody else has. It takes a
// type to use the latter.
func (s *stage) define(name string, endpoints ...endpoint) service {
	s.next++
	return service{
		name:      name,
		ips:       []string{fmt.Sprintf("10.96.1.%d", s.next), fmt.Sprintf("fd00:10:96::1%02x", s.next)},
		ports:     all,
		endpoints: endpoints,
	}
}

// defineNodePort is define for type NodePort.
func (s *stage) defineNodePort(name string, endpoints ...endpoint) service {
	svc := s.define(name, endpoints...)
	svc.kind, svc.nodePort = "NodePort", uint16(30000+s.next)
	return svc
}

// defineBalancer is define for type LoadBalancer, with an address of each family.
func (s *stage) defineBalancer(name string, endpoints ...endpoint) service {
	svc := s.defineNodePort(name, endpoints...)
	svc.kind = "LoadBalancer"
	svc.balancer = []string{fmt.Sprintf("203.0.113.%d", s.next), fmt.Sprintf("2001:db8:cb::%x", s.next)}
	return svc
}

// service makes a Service with the pods behind all ports, and waits until the nodes have it.
func (s *stage) service(t *testing.T, name string, endpoints ...endpoint) service {
	t.Helper()
	svc := s.define(name, endpoints...)
	s.create(t, svc)
	return svc
}

// create applies a Service with its slices until the end of the test, and waits until the nodes have it.
func (s *stage) create(t *testing.T, svc service) {
	t.Helper()
	t.Cleanup(func() { s.remove(t, svc.manifest()) })
	s.change(t, svc)
}

// change applies what a Service is from now on.
func (s *stage) change(t *testing.T, svc service) {
	t.Helper()
	s.apply(t, svc.manifest())
	s.awaitService(t, svc)
}

// awaitService waits until every node has every port of the Service, with its endpoints where they are the same everywhere.
func (s *stage) awaitService(t *testing.T, svc service) {
	t.Helper()
	for _, node := range s.Nodes {
		cluster.Eventually(t, patience, node.Name+" has Service "+svc.name, func() error { return hasService(node, svc) })
	}
}

// hasService says what a node lacks of a Service: a virtual server, its destinations, or what the agent writes last, the entry
// that lets packets to it through.
func hasService(node *cluster.Node, svc service) error {
	servers, err := node.VirtualServers()
	if err != nil {
		return err
	}
	open, err := openClusterIPs(node)
	if err != nil {
		return err
	}
	for _, ip := range svc.ips {
		for _, p := range svc.ports {
			key := serverKey(ip, p)
			have, found := servers[key]
			if !found {
				return fmt.Errorf("%s is missing", key)
			}
			if !svc.even() {
				continue
			}
			destinations := svc.destinations(ip, p)
			if err := compare(have.Weights, destinations); err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
			if entry := setEntry(ip, p); len(destinations) > 0 && !strings.Contains(open, entry) {
				return fmt.Errorf("no set of ClusterIPs that are served holds %s", entry)
			}
		}
	}
	return nil
}

// openClusterIPs lists the sets of ClusterIPs' ports that are served, an entry in each line.
func openClusterIPs(node *cluster.Node) (string, error) {
	v4, err4 := node.Run("ipset", "list", "-output", "save", "KIPVS-4-CLUSTER-IP")
	v6, err6 := node.Run("ipset", "list", "-output", "save", "KIPVS-6-CLUSTER-IP")
	return v4 + v6, errors.Join(err4, err6)
}

// setEntry is a ClusterIP's port as a line of a set ends.
func setEntry(ip string, p port) string {
	return fmt.Sprintf(" %s,%s:%d\n", ip, strings.ToLower(string(p.protocol)), p.port)
}

func serverKey(ip string, p port) string {
	return cluster.VirtualKey(p.protocol, netip.AddrPortFrom(netip.MustParseAddr(ip), p.port).String())
}

// destinations are the addresses of the endpoints that get new connections: the ready ones, or those that still serve.
func (s service) destinations(ip string, p port) []string {
	family := cluster.V6
	if netip.MustParseAddr(ip).Is4() {
		family = cluster.V4
	}
	of := func(states ...string) []string {
		ds := []string{}
		for _, e := range s.endpoints {
			if slices.Contains(states, e.state) {
				ds = append(ds, e.host.At(family, p.target))
			}
		}
		return ds
	}
	if ready := of("", "published"); len(ready) > 0 {
		return ready
	}
	return of("terminating")
}

// everyPort runs a story for each protocol and family.
func (s *stage) everyPort(t *testing.T, story func(t *testing.T, family cluster.Family, p port)) {
	for _, family := range s.FamilyList() {
		for _, p := range all {
			t.Run(fmt.Sprintf("%s/%s", family, p.protocol), func(t *testing.T) { story(t, family, p) })
		}
	}
}

func wantReply(t *testing.T, got cluster.Reply, server string, source netip.Addr) {
	t.Helper()
	if got.Server != server || got.Source != source {
		t.Errorf("want %s to answer a request from %s; %s answered one from %s", server, source, got.Server, got.Source)
	}
}

// reach waits for an answer and wants it to come from the server, which saw the source. What the agent has not done yet may
// be refused until then; a wrong server or source is wrong at once.
func reach(t *testing.T, from *cluster.Host, p port, addr, server string, source netip.Addr) {
	t.Helper()
	got := from.Await(t, patience, p.protocol, addr)
	if got.Server != server || got.Source != source {
		t.Errorf("%s -> %s %s: want %s to see %s; %s saw %s", from.Name, addr, p.protocol, server, source, got.Server, got.Source)
	}
}

// settles is reach where something else answers until the agent has followed a change.
func settles(t *testing.T, from *cluster.Host, p port, addr, server string, source netip.Addr) {
	t.Helper()
	cluster.Eventually(t, patience, fmt.Sprintf("%s -> %s %s: %s sees %s", from.Name, addr, p.protocol, server, source), func() error {
		r := from.Probe(p.protocol, addr)
		if r.Outcome != cluster.Answered || r.Reply.Server != server || r.Reply.Source != source {
			return errors.New(r.String())
		}
		return nil
	})
}

// becomes waits until requests have an outcome.
func becomes(t *testing.T, from *cluster.Host, p port, addr string, want cluster.Outcome) {
	t.Helper()
	cluster.Eventually(t, patience, fmt.Sprintf("%s -> %s %s is %s", from.Name, addr, p.protocol, want), func() error {
		within := slowly
		if want == cluster.Timeout {
			within = cluster.Within(cluster.DefaultSilence)
		}
		if r := from.Probe(p.protocol, addr, within); r.Outcome != want {
			return errors.New(r.String())
		}
		return nil
	})
}
