package compile_test

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// at returns a Service with one TCP port and an external or load balancer IP.
func at(name string, port uint16, external, balancer string) *model.Service {
	svc := compiletest.Service(name, "10.96.0.1", "10.244.9.1")
	svc.Ports[0].Port = port
	if external != "" {
		svc.ExternalIPs = addrs(external)
	}
	if balancer != "" {
		svc.LoadBalancerIPs = addrs(balancer)
	}
	return svc
}

func isServed(c *compile.Cluster, addr string, port uint16) bool {
	return c.Want().Servers[tcpAt(netip.AddrPortFrom(netip.MustParseAddr(addr), port).String())] != nil
}

// A node keeps the ports that it needs at its own address, even if no process listens on them. Services can have all other ports.
func TestPortsThatTheNodeNeeds(t *testing.T) {
	const own, vip = "192.0.2.1", "192.0.2.77"
	in := compiletest.At(own, vip)
	in.Nodes[compiletest.Node] = &model.Node{Name: compiletest.Node, Addresses: addrs(own)}
	for _, port := range []uint16{22, 2379, 2380, 6443, 7443, 8443, 10250, 10256, 10257, 10259, 10266} {
		for mode, want := range map[compile.AtNode]bool{compile.AtNodeGuarded: false, compile.AtNodeAll: true, compile.AtNodeNone: false} {
			cfg := compiletest.Config()
			cfg.ExternalIPs.AtNode, cfg.AgentPorts = mode, []uint16{10266}
			c := compiletest.Cluster(cfg, nil, in)
			c.SetAPIServer([]netip.AddrPort{netip.MustParseAddrPort(own + ":7443"), netip.MustParseAddrPort("203.0.113.1:8443")}, touched())
			for kind, svc := range map[string]*model.Service{
				"external": at("web", port, own, ""), "balancer": at("web", port, "", own), "announced": at("web", port, "", vip),
			} {
				// The API server listens on 8443 at another address. A load balancer's address that a controller has added to an interface
				// is served.
				want := want || port == 8443 && (mode == compile.AtNodeGuarded || kind == "balancer") || kind == "announced" ||
					kind == "balancer" && mode == compile.AtNodeNone && port == 8443
				addr := own
				if kind == "announced" {
					addr = vip
				}
				c.Update(services{svc.ID: svc}, touched())
				if got := isServed(c, addr, port); got != want || (len(c.Problems(svc.ID)) == 0) != want {
					t.Errorf("%s at %d, mode %d: got served %t, want %t; problems %v", kind, port, mode, got, want, c.Problems(svc.ID))
				}
				c.Update(services{svc.ID: nil}, touched())
			}
		}
	}
}

func touched() *want.Touched { return want.NewTouched() }

// While a process is listening on a port, no new external IP gets the port. A served frontend keeps it.
func TestListenersBlockOnlyNewClaims(t *testing.T) {
	const own = "192.0.2.1"
	listening := kernel.Listeners{{Addr: netip.MustParseAddrPort("[::]:443"), Protocol: inet.TCP}: {}}
	c := compiletest.Cluster(compiletest.Config(), nil, home)
	first, second := at("first", 443, own, ""), at("second", 443, own, "")
	expect := func(want bool) {
		t.Helper()
		if isServed(c, own, 443) != want {
			t.Errorf("the Service is served: %t, problems %v", !want, c.Problems(first.ID))
		}
	}
	c.Update(services{first.ID: first}, touched())
	c.SetListeners(listening, touched())
	expect(true)
	c.Reconfigure(compiletest.Config().Settings, touched())
	expect(true)
	c.Update(services{first.ID: nil}, touched())
	c.Update(services{second.ID: second}, touched())
	expect(false)
	if ps := c.Problems(second.ID); len(ps) != 1 || ps[0].Value != own+":443/tcp" || !strings.Contains(ps[0].Reason, "listens") {
		t.Errorf("problems %v", ps)
	}
	if keys, atNode, waits := c.Unsettled(true); len(keys) != 1 || atNode || !waits {
		t.Errorf("got unsettled frontends %v, atNode %t, waits %t", keys, atNode, waits)
	}
	c.SetListeners(nil, touched())
	expect(true)
	c = compiletest.Cluster(compiletest.Config(), nil, home) // a restarted agent finds what the previous agent left
	c.SetListeners(listening, touched())
	c.Update(services{first.ID: first}, touched())
	expect(false)
	c.SetLeft(slices.Values([]compile.FrontendKey{{Key: tcpAt(own + ":443")}}), touched())
	expect(true)
}

// A node keeps the source ports of its own connections, because replies to these connections would look like new
// connections to a Service.
func TestPortsOfTheNodesOwnConnections(t *testing.T) {
	const own, other = "192.0.2.1", "203.0.113.7"
	cfg := compiletest.Config()
	cfg.LocalPorts = kernel.Ports{{First: 32768, Last: 60999}}
	for port, want := range map[uint16]bool{32767: true, 32768: false, 60999: false, 61000: true} {
		c := compiletest.Cluster(cfg, nil, home)
		svc, elsewhere := at("web", port, own, ""), at("elsewhere", port, other, "")
		elsewhere.ClusterIPs = addrs("10.96.0.2")
		c.SetListeners(nil, touched())
		c.Update(services{svc.ID: svc, elsewhere.ID: elsewhere}, touched())
		if isServed(c, own, port) != want || (len(c.Problems(svc.ID)) == 0) != want || !isServed(c, other, port) {
			t.Errorf("port %d is served: %t, problems %v", port, !want, c.Problems(svc.ID))
		}
		if _, atNode, _ := c.Unsettled(true); atNode {
			t.Errorf("%d: the agent would list the node's sockets on each change to the Service", port)
		}
	}
	c := compiletest.Cluster(cfg, nil, home) // an earlier agent served the port
	c.SetLeft(slices.Values([]compile.FrontendKey{{Key: tcpAt(own + ":40000")}}), touched())
	svc := at("web", 40000, own, "")
	if c.Update(services{svc.ID: svc}, touched()); !isServed(c, own, 40000) {
		t.Errorf("the Service is not served: %v", c.Problems(svc.ID))
	}
}

// A Node object cannot take an address from a served Service, but a new Service cannot get an address of a node. A Service that lists
// addresses of several nodes, including this one, has no Problem.
func TestNodeObjectsTakeNothingAway(t *testing.T) {
	const address = "203.0.113.1"
	node := &model.Node{Name: "node-b", Addresses: addrs(address)}
	for name, svc := range map[string]*model.Service{"external": at("web", 80, address, ""), "balancer": at("web", 80, "", address)} {
		c := scratch(services{svc.ID: svc})
		c.UpdateNodes(map[string]*model.Node{"node-b": node}, touched())
		if ps := c.Problems(svc.ID); !isServed(c, address, 80) || len(ps) != 1 || !strings.Contains(ps[0].Reason, "served, but the Node object node-b") {
			t.Errorf("%s: got problems %v", name, ps)
		}
		c.Update(services{svc.ID: nil}, touched())
		c.Update(services{svc.ID: svc}, touched())
		if ps := c.Problems(svc.ID); isServed(c, address, 80) || len(ps) != 1 || !strings.Contains(ps[0].Reason, "not served: the Node object node-b") {
			t.Errorf("%s, new Service: got problems %v", name, ps)
		}
		listed := *svc
		listed.ExternalIPs = append(addrs("192.0.2.1"), svc.ExternalIPs...)
		c.Update(services{svc.ID: &listed}, touched())
		if ps := c.Problems(svc.ID); isServed(c, address, 80) || len(ps) > 0 {
			t.Errorf("%s, with this node: got problems %v", name, ps)
		}
		c.UpdateNodes(map[string]*model.Node{"node-b": nil}, touched())
		if !isServed(c, address, 80) || len(c.Problems(svc.ID)) > 0 {
			t.Errorf("%s, without the node: got problems %v", name, c.Problems(svc.ID))
		}
	}
}

// A Service claims the address of a control plane node, or of a gateway that is a node, before the node joins. The Service loses the
// address, no matter whether the node or its role becomes known first.
func TestAddressesOfFutureNodes(t *testing.T) {
	const address = "198.51.100.20"
	node := func(c *compile.Cluster) {
		c.UpdateNodes(map[string]*model.Node{"cp-2": {Name: "cp-2", Addresses: addrs(address)}}, touched())
	}
	for name, role := range map[string]func(*compile.Cluster){
		"API server": func(c *compile.Cluster) {
			c.SetAPIServer([]netip.AddrPort{netip.MustParseAddrPort(address + ":6443")}, touched())
		},
		"gateway": func(c *compile.Cluster) {
			c.SetNetwork(kernel.Network{netip.MustParseAddr(address): {Kind: kernel.Gateway}}, touched())
		},
	} {
		for _, steps := range [][]func(*compile.Cluster){{node, role}, {role, node}} {
			svc := at("web", 6443, address, "")
			c := scratch(services{svc.ID: svc})
			before := isServed(c, address, 6443)
			for _, step := range steps {
				step(c)
			}
			if ps := c.Problems(svc.ID); !before || isServed(c, address, 6443) || len(ps) != 1 {
				t.Errorf("%s: served before: %t, after: %t; problems %v", name, before, isServed(c, address, 6443), ps)
			}
		}
	}
}

// An external IP cannot take the address of a pod. A load balancer's address is set by a controller, so it stays if it is already served.
func TestPodRangesAreOutOfReach(t *testing.T) {
	const pod = "10.244.7.7"
	for name, svc := range map[string]*model.Service{"external": at("web", 80, pod, ""), "balancer": at("web", 80, "", pod)} {
		c := scratch(services{svc.ID: svc})
		for _, node := range []string{"node-b", compiletest.Node} {
			c.UpdateNodes(map[string]*model.Node{node: {Name: node, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.7.0/24")}}}, touched())
			if ps := c.Problems(svc.ID); isServed(c, pod, 80) != (name == "balancer") || len(ps) != 1 || !strings.Contains(ps[0].Reason, "pod range of node "+node) {
				t.Errorf("%s, %s: got problems %v", name, node, ps)
			}
			c.Update(services{svc.ID: nil}, touched())
			c.Update(services{svc.ID: svc}, touched())
			if ps := c.Problems(svc.ID); isServed(c, pod, 80) || len(ps) != 1 {
				t.Errorf("%s, %s, new Service: got problems %v", name, node, ps)
			}
			if c.UpdateNodes(map[string]*model.Node{node: nil}, touched()); node == "node-b" && !isServed(c, pod, 80) {
				t.Errorf("%s is not served without the range", name)
			}
		}
	}
}

// reserved lists the addresses that a node needs, by class.
var reserved = map[string][]string{
	"network":  {"192.0.2.254", "192.0.2.255", "192.0.2.0", "fd00:2::fe"},
	"API":      {"198.51.100.1", "198.51.100.2", "fd00:51::1"},
	"pod":      {"10.244.0.1", "10.244.7.7", "fd00:10:244::7"},
	"own":      {"192.0.2.1", "fd00:2::1"},
	"node":     {"192.0.2.2", "fd00:2::2"},
	"nobody":   {"0.0.0.0", "127.0.0.1", "169.254.169.254", "224.0.0.1", "255.255.255.255", "::1", "fe80::1", "ff02::1", "fd00:ec2::254"},
	"link":     {"192.0.2.99", "203.0.113.53", "2001:db8::53"}, // in the node's networks, and its nameservers
	"public":   {"203.0.113.7"},
	"ordinary": {"203.0.113.1", "203.0.113.9", "2001:db8::9"},
}

// node1 returns a Cluster that has learned every address in reserved.
func node1(all services) *compile.Cluster {
	in := home
	in.Nodes = map[string]*model.Node{
		compiletest.Node: {Name: compiletest.Node, Addresses: slices.Concat(home.Addresses, addrs(reserved["public"]...)),
			PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24")}},
		"node-b": {Name: "node-b", Addresses: addrs(reserved["node"]...), PodCIDRs: []netip.Prefix{
			netip.MustParsePrefix("10.244.7.0/24"), netip.MustParsePrefix("fd00:10:244::/64"),
		}},
	}
	c := compiletest.Cluster(compiletest.Config(), nil, in)
	network := maps.Clone(subnet)
	network[netip.MustParseAddr("fd00:2::fe")] = kernel.NetworkRole{Kind: kernel.Gateway}
	for _, nameserver := range []string{"203.0.113.53", "2001:db8::53"} {
		network[netip.MustParseAddr(nameserver)] = kernel.NetworkRole{Kind: kernel.Nameserver}
	}
	c.SetNetwork(network, touched())
	c.SetAPIServer([]netip.AddrPort{netip.MustParseAddrPort("198.51.100.1:443"), netip.MustParseAddrPort("[fd00:51::1]:443")}, touched())
	api := kubernetesService("198.51.100.2")
	c.Update(services{api.ID: api}, touched())
	c.Update(all, touched())
	return c
}

// I17, and I14 for compile: a hostile Service never gets an address that the node needs, regardless of its addresses and endpoints. Each refusal is
// reported as a Problem, and other Services are compiled as if the hostile Service did not exist.
func TestHostileServicesReachNothing(t *testing.T) {
	ordinary := services{}
	for i, name := range []string{"dns", "web", "db"} {
		svc := compiletest.Service(name, fmt.Sprintf("10.96.1.%d", i+1), fmt.Sprintf("10.244.0.%d", i+1), "10.244.7.7")
		svc.Ports[0].NodePort = uint16(30000 + i)
		svc.LoadBalancerIPs = addrs(fmt.Sprintf("203.0.113.%d", i+1))
		ordinary[svc.ID] = svc
	}
	without := node1(ordinary)
	classes := slices.Sorted(maps.Keys(reserved))
	address := rapid.Custom(func(t *rapid.T) netip.Addr {
		return netip.MustParseAddr(rapid.SampledFrom(reserved[rapid.SampledFrom(classes).Draw(t, "class")]).Draw(t, "address"))
	})
	list := rapid.SliceOfN(address, 0, 4)
	rapid.Check(t, func(t *rapid.T) {
		hostile := compiletest.Service("hostile", "10.96.9.9")
		hostile.Created = compiletest.Epoch.AddDate(0, 0, rapid.IntRange(1, 2).Draw(t, "younger"))
		hostile.ClusterIPs = append(hostile.ClusterIPs, netip.MustParseAddr("fd00:10:96::99"))
		hostile.ExternalIPs, hostile.LoadBalancerIPs = list.Draw(t, "external"), list.Draw(t, "balancer")
		hostile.Ports[0].Port = rapid.SampledFrom([]uint16{22, 80, 443, 2379, 6443, 10250}).Draw(t, "port")
		hostile.Ports[0].NodePort = rapid.SampledFrom([]uint16{0, 22, 2379, 6443, 10250, 30000}).Draw(t, "node port")
		hostile.HealthCheckPort = rapid.SampledFrom([]uint16{0, 22, 6443, 10250, 30001}).Draw(t, "health check port")
		for _, a := range list.Draw(t, "endpoints") {
			slice := &model.EndpointSlice{Name: "x", Family: inet.FamilyOf(a), Ports: hostile.Slices[0].Ports}
			slice.Endpoints = []model.Endpoint{compiletest.Ready(a)}
			hostile.Slices = append(hostile.Slices, slice)
		}
		all := maps.Clone(ordinary)
		all[hostile.ID] = hostile
		c := node1(all)
		for id := range ordinary {
			if a, b := without.Fragment(id), c.Fragment(id); !reflect.DeepEqual(a, b) || !slices.Equal(without.Problems(id), c.Problems(id)) {
				t.Fatalf("%s: got %+v without the hostile Service, %+v with it; problems %v", id, a, b, c.Problems(id))
			}
		}
		for _, taken := range takenFromNode(c, hostile) {
			t.Fatal(taken)
		}
		if h := c.HealthPort(hostile.ID); h.Port != 0 {
			t.Fatalf("the agent answers health checks on port %d", h.Port)
		}
		for _, a := range slices.Concat(hostile.ExternalIPs, hostile.LoadBalancerIPs) {
			if !isServed(c, a.String(), hostile.Ports[0].Port) && !explained(c, hostile, a) {
				t.Fatalf("%s is not served, and the problems are %v", a, c.Problems(hostile.ID))
			}
		}
	})
}

// takenFromNode lists what a hostile Service has taken from the node: addresses, or needed ports at the node's own addresses.
func takenFromNode(c *compile.Cluster, hostile *model.Service) (taken []string) {
	for _, class := range []string{"network", "API", "own", "node", "nobody", "link"} {
		for _, a := range addrs(reserved[class]...) {
			if len(c.Want().ServersAt(a)) > 0 && (class != "link" || !slices.Contains(hostile.LoadBalancerIPs, a)) {
				taken = append(taken, fmt.Sprintf("%s is bound", a))
			}
		}
	}
	for _, port := range []uint16{22, 2379, 6443, 10250} {
		for _, own := range []string{"192.0.2.1", "203.0.113.7"} {
			if isServed(c, own, port) {
				taken = append(taken, fmt.Sprintf("the node's port %d is served at %s", port, own))
			}
		}
	}
	return taken
}

// explained reports whether a Problem names the address, or the Service leaves the address to another node.
func explained(c *compile.Cluster, svc *model.Service, a netip.Addr) bool {
	if slices.Contains(reserved["node"], a.String()) &&
		slices.ContainsFunc(slices.Concat(svc.ExternalIPs, svc.LoadBalancerIPs), func(a netip.Addr) bool { return slices.Contains(home.Addresses, a) }) {
		return true
	}
	return slices.ContainsFunc(c.Problems(svc.ID), func(p model.Problem) bool {
		return p.Value == a.String() || strings.HasPrefix(p.Value, netip.AddrPortFrom(a, svc.Ports[0].Port).String())
	})
}

// I17: a hostile Node object can only change the Problems of served Services, regardless of its addresses and pod ranges. External IPs in a pod range
// are the exception. Otherwise an IP that is claimed before the node exists would capture traffic to the node's pods.
func TestHostileNodesTakeNothingAway(t *testing.T) {
	ordinary := services{}
	for i, name := range []string{"dns", "web", "db"} {
		svc := compiletest.Service(name, fmt.Sprintf("10.96.1.%d", i+1), fmt.Sprintf("10.244.0.%d", i+1), "10.244.7.7")
		svc.LoadBalancerIPs, svc.ExternalIPs = addrs(fmt.Sprintf("203.0.113.%d", i+1)), addrs(fmt.Sprintf("198.18.0.%d", i+1), "192.0.2.1")
		if name == "dns" {
			svc.LoadBalancerIPs = append(svc.LoadBalancerIPs, addrs(reserved["link"]...)[1]) // the nodes' nameserver
		}
		svc.Ports[0].Port += uint16(i)
		ordinary[svc.ID] = svc
	}
	texts := slices.Concat(slices.Collect(maps.Values(reserved))...)
	texts = append(texts, "10.96.1.1", "10.96.1.2", "203.0.113.2", "203.0.113.3", "198.18.0.1", "198.18.0.2")
	slices.Sort(texts)
	ranges := []string{"0.0.0.0/0", "10.96.0.0/12", "203.0.113.0/24", "::/0", "192.0.2.0/24"}
	rapid.Check(t, func(t *rapid.T) {
		c, without := node1(ordinary), node1(ordinary)
		for i := range rapid.IntRange(1, 3).Draw(t, "versions") {
			evil := &model.Node{Name: "evil", Addresses: addrs(rapid.SliceOfN(rapid.SampledFrom(texts), 0, 8).Draw(t, fmt.Sprint("addresses ", i))...)}
			for _, r := range rapid.SliceOfN(rapid.SampledFrom(ranges), 0, 2).Draw(t, fmt.Sprint("ranges ", i)) {
				evil.PodCIDRs = append(evil.PodCIDRs, netip.MustParsePrefix(r))
			}
			c.UpdateNodes(map[string]*model.Node{evil.Name: evil}, touched())
			pods := slices.ContainsFunc(evil.PodCIDRs, func(r netip.Prefix) bool { return r.Contains(netip.MustParseAddr("198.18.0.1")) })
			for key, server := range without.Want().Servers {
				if external := strings.HasPrefix(key.Addr.String(), "198.18."); !(external && pods) && !reflect.DeepEqual(server, c.Want().Servers[key]) {
					t.Fatalf("%s was %v, but is now %v", key, server, c.Want().Servers[key])
				}
			}
			if pods {
				return // a claim that was withdrawn counts as new
			}
		}
	})
}

// A served Service keeps its ClusterIP even if an interface of this node gets the address. A new Service cannot have an address of the node.
func TestInterfaceTakesNoClusterIP(t *testing.T) {
	const address = "10.96.0.1"
	web := compiletest.Service("web", address, "10.244.0.1")
	key := tcpAt(address + ":80")
	c := compiletest.Cluster(compiletest.Config(), services{web.ID: web}, home)
	with := slices.Concat(home.Addresses, []netip.Addr{netip.MustParseAddr(address)})
	for range 2 {
		c.SetAddresses(with, touched())
		server := c.Want().Servers[key]
		if server == nil || !server.Unbound || len(c.Want().ServersAt(netip.MustParseAddr(address))) > 0 {
			t.Fatalf("got %+v while an interface has the ClusterIP", server)
		}
		if p := c.Problems(web.ID); len(p) != 1 || !strings.HasPrefix(p[0].Reason, "served, but") {
			t.Errorf("problems: %v", p)
		}
		changed := compiletest.Service("web", address, "10.244.0.2")
		c.Update(services{web.ID: changed}, touched())
		if c.Want().Servers[key] == nil {
			t.Error("the ClusterIP is gone after an endpoint was added")
		}
		c.SetAddresses(home.Addresses, touched())
		if server := c.Want().Servers[key]; server == nil || server.Unbound || len(c.Problems(web.ID)) > 0 {
			t.Errorf("got %+v and problems %v after the interface lost the address", server, c.Problems(web.ID))
		}
	}
	restarted := home
	restarted.Addresses, restarted.Left = with, []compile.FrontendKey{{Key: key, ClusterIP: true}}
	if c := compiletest.Cluster(compiletest.Config(), services{web.ID: web}, restarted); c.Want().Servers[key] == nil {
		t.Error("a restarted agent removes the ClusterIP")
	}
	c.SetAddresses(with, touched())
	other := compiletest.Service("other", address, "10.244.0.1")
	other.Ports[0].Port = 443
	c.Update(services{other.ID: other}, touched())
	if c.Want().Servers[tcpAt(address+":443")] != nil {
		t.Error("a new Service's ClusterIP is served although it is an address of the node")
	}
}
