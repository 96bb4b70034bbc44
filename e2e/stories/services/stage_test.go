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

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/manifest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

type (
	port    = manifest.Port
	service = manifest.Service
)

// defaultPorts lists the ports of a Service that specifies none. All three have the same number, so they can share
// a node port.
const defaultPorts = `ports:
- {name: http, port: 80, targetPort: 8080}
- {name: dns, protocol: UDP, port: 80, targetPort: 5353}
- {name: diameter, protocol: SCTP, port: 80, targetPort: 3868}`

// Reasons why stories do not apply in user space.
const (
	noSCTP       = "no SCTP"
	noRules      = "no rules"
	withProcess  = "connections end with the process"
	alwaysRoutes = "addresses are always routes"
	ownNamespace = "no other process listens in the agent's namespace"
)

var (
	http   = port{Protocol: cluster.TCP, Number: 80, Target: 8080}
	dns    = port{Protocol: cluster.UDP, Number: 80, Target: 5353}
	diam   = port{Protocol: cluster.SCTP, Number: 80, Target: 3868}
	all    = served(http, dns, diam)
	slowly = cluster.Within(10 * time.Second)
)

// served leaves out the ports that this run's data plane cannot serve.
func served(ports ...port) []port {
	return slices.DeleteFunc(ports, func(p port) bool { return p.Protocol == cluster.SCTP && cluster.Userspace() })
}

// inKernel runs a story that does not apply, for the given reason, where the agent's process forwards connections.
func inKernel(t *testing.T, why, name string, story func(t *testing.T)) {
	t.Helper()
	if cluster.Userspace() {
		t.Logf("%s: not in user space: %s", name, why)
		return
	}
	t.Run(name, story)
}

// stage contains servers on node-1 and node-2, client pods on node-1 and node-3 (which has no endpoint), and two
// outside clients.
type stage struct {
	*world
	node1, node2, node3   *cluster.Node
	client, farClient     *cluster.Pod
	sameNode, otherNode   *cluster.Pod // web-1 on node-1, web-2 on node-2
	outside, otherOutside *cluster.Host
	servers               map[*cluster.Pod]map[cluster.Protocol]*cluster.Server
	sctpLoaded            error // set if a Service loaded the kernel's SCTP module
	services              manifest.Maker
}

var shared = cluster.Shared[*stage]{Make: newStage}

func TestMain(m *testing.M) { os.Exit(shared.Run(m)) }

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
	s := &stage{world: w, node1: w.Nodes[0], node2: w.Nodes[1], node3: w.Nodes[2], outside: w.Clients[0], otherOutside: w.Clients[1],
		services: manifest.Maker{Cluster: w.Cluster, Ports: defaultPorts}}
	for _, step := range []func() error{
		s.addPods,
		s.addRoutes,
		func() error { return s.startAgents(t) },
		// Check this before the servers start, because an SCTP socket loads the module.
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
		s.agents[node].AwaitLog(t, 2*patience, "initial sync complete") // the first start loads kernel modules
	}
	return nil
}

// serveSCTP returns an error if an SCTP Service loads the kernel's SCTP module.
func (s *stage) serveSCTP(t *testing.T) error {
	t.Helper()
	loaded := func() bool {
		modules, err := os.ReadFile("/proc/modules")
		return err == nil && strings.Contains("\n"+string(modules), "\nsctp ")
	}
	if loaded() { // by another test
		if out, err := s.Router.Run("modprobe", "-r", "sctp"); err != nil {
			return fmt.Errorf("cannot unload the SCTP module; run this package first: %w %s", err, out)
		}
	}
	if cluster.Userspace() {
		return nil
	}
	svc := s.define(`
metadata: {name: sctp-module}
spec: {ports: [{name: diameter, protocol: SCTP, port: 80, targetPort: 3868}]}
---
endpoints: [{addresses: [web-2]}]`)
	s.change(t, svc)
	defer s.remove(t, svc.YAML())
	if loaded() {
		return errors.New("a Service with an SCTP port loaded the SCTP module")
	}
	return nil
}

func (s *stage) serve(p port) (err error) {
	if s.lacks(p) {
		return nil
	}
	for pod, servers := range s.servers {
		server, failed := pod.Listen(p.Protocol, p.Target)
		servers[p.Protocol] = server
		err = errors.Join(err, failed)
	}
	return err
}

func (s *stage) lacks(p port) bool {
	return p.Protocol == cluster.SCTP && cluster.Balancing() && errors.Is(s.Router.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)
		if err == nil {
			err = unix.Close(fd)
		}
		return err
	}), unix.EPROTONOSUPPORT)
}

// The router sends packets for these load balancer and external addresses to node-1.
var balancers = map[cluster.Family]netip.Prefix{
	cluster.V4: netip.MustParsePrefix("203.0.113.0/24"),
	cluster.V6: netip.MustParsePrefix("2001:db8:cb::/64"),
}

// define returns a Service with unique addresses and a unique node port. Package manifest explains the YAML.
func (s *stage) define(yaml string) service { return s.services.Service(yaml) }

func (s *stage) service(t *testing.T, yaml string) service {
	t.Helper()
	svc := s.define(yaml)
	s.create(t, svc)
	return svc
}

func (s *stage) create(t *testing.T, svc service) {
	t.Helper()
	t.Cleanup(func() { s.remove(t, svc.YAML()) })
	s.change(t, svc)
}

func (s *stage) change(t *testing.T, svc service) {
	t.Helper()
	s.apply(t, svc.YAML())
	s.awaitService(t, svc)
}

// awaitService waits until every node serves every port. It also waits for the endpoints if they are the same on
// every node.
func (s *stage) awaitService(t *testing.T, svc service) {
	t.Helper()
	for _, node := range s.Nodes {
		cluster.Eventually(t, patience, node.Name+" serves Service "+svc.Name, func() error { return serves(node, svc) })
	}
}

// serves returns an error that names the missing part of a Service. The agent binds the address last.
func serves(node *cluster.Node, svc service) error {
	servers, err := node.VirtualServers()
	if err != nil {
		return err
	}
	for _, ip := range svc.Spec.ClusterIPs {
		for _, p := range served(svc.Ports()...) {
			if err := servesPort(node, svc, servers, manifest.FamilyOf(ip), p); err != nil {
				return err
			}
		}
		switch bound, err := node.Binds(netip.MustParseAddr(ip)); {
		case err != nil:
			return err
		case !bound:
			return fmt.Errorf("the node has not bound %s", ip)
		}
	}
	return nil
}

func servesPort(node *cluster.Node, svc service, servers map[string]cluster.VirtualServer, family cluster.Family, p port) error {
	at := svc.At(family, p)
	key := cluster.VirtualKey(p.Protocol, at)
	server, found := servers[key]
	if !found {
		return fmt.Errorf("%s is missing", key)
	}
	if !svc.SameOnEveryNode() {
		return nil
	}
	destinations := svc.Destinations(family, p)
	if err := compare(server.Weights, destinations); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	if len(destinations) == 0 {
		return nil
	}
	set := map[cluster.Family]string{cluster.V4: "KIPVS-4-CLUSTER-IP", cluster.V6: "KIPVS-6-CLUSTER-IP"}[family]
	switch open, err := node.SetHolds(set, p.Protocol, netip.MustParseAddrPort(at)); {
	case err != nil:
		return fmt.Errorf("%s: %w", set, err)
	case !open:
		return fmt.Errorf("set %s has no entry for %s", set, key)
	}
	return nil
}

func (s *stage) everyPort(t *testing.T, story func(t *testing.T, family cluster.Family, p port)) {
	for _, family := range s.FamilyList() {
		for _, p := range all {
			t.Run(fmt.Sprintf("%s/%s", family, p.Protocol), func(t *testing.T) {
				if s.lacks(p) {
					t.Skip("this kernel does not support SCTP")
				}
				story(t, family, p)
			})
		}
	}
}

func wantReply(t *testing.T, got cluster.Reply, server string, source netip.Addr) {
	t.Helper()
	if got.Server != server || !cluster.Sees(got.Source, source) {
		t.Errorf("want an answer from %s to a client at %s; got one from %s to a client at %s", server, source, got.Server, got.Source)
	}
}

// reach waits for an answer. An answer from another server, or with another source, fails the test.
func reach(t *testing.T, from *cluster.Host, p port, addr, server string, source netip.Addr) {
	t.Helper()
	got := from.Await(t, patience, p.Protocol, addr)
	if got.Server != server || !cluster.Sees(got.Source, source) {
		t.Errorf("%s -> %s %s: want %s to see %s; %s saw %s", from.Name, addr, p.Protocol, server, source, got.Server, got.Source)
	}
}

// settles is like reach, but another server may answer until the agent has synced a change.
func settles(t *testing.T, from *cluster.Host, p port, addr, server string, source netip.Addr) {
	t.Helper()
	cluster.Eventually(t, patience, fmt.Sprintf("%s -> %s %s: %s sees %s", from.Name, addr, p.Protocol, server, source), func() error {
		r := from.Probe(p.Protocol, addr)
		if r.Outcome != cluster.Answered || r.Reply.Server != server || !cluster.Sees(r.Reply.Source, source) {
			return errors.New(r.String())
		}
		return nil
	})
}

// refuses requires an immediate refusal. In user space, guarded ports refuse datagrams, too, and the kernel limits its ICMP errors for each
// client, so the first datagram may get none.
func refuses(t *testing.T, from *cluster.Host, p cluster.Protocol, at string) {
	t.Helper()
	if cluster.Userspace() && p == cluster.UDP {
		becomes(t, from, port{Protocol: p}, at, cluster.Refused)
		return
	}
	from.MustRefuse(t, p, at, slowly)
}

func becomes(t *testing.T, from *cluster.Host, p port, addr string, want cluster.Outcome) {
	t.Helper()
	cluster.Eventually(t, patience, fmt.Sprintf("%s -> %s %s is %s", from.Name, addr, p.Protocol, want), func() error {
		within := slowly
		if want == cluster.Timeout {
			within = cluster.Within(cluster.DefaultSilence)
		}
		if r := from.Probe(p.Protocol, addr, within); !r.Outcome.Is(want) {
			return errors.New(r.String())
		}
		return nil
	})
}
