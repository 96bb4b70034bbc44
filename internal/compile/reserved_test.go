package compile_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

var (
	gateway   = netip.MustParseAddr("192.0.2.254")
	broadcast = netip.MustParseAddr("192.0.2.255")
	first     = netip.MustParseAddr("192.0.2.0")
)

var subnet = kernel.Network{
	gateway:   {Kind: kernel.Gateway},
	broadcast: {Kind: kernel.Broadcast, Subnet: netip.MustParsePrefix("192.0.2.0/24")},
	first:     {Kind: kernel.SubnetAddress, Subnet: netip.MustParsePrefix("192.0.2.0/24")},
}

// No Service can cut a node off from its network, not even through a Service range that overlaps with the network. If the agent discovers a
// network later, Services lose the network's addresses.
func TestNetworkAddressesAreRefused(t *testing.T) {
	web := compiletest.Service("web", "10.96.0.1", "10.244.0.1")
	web.LoadBalancerIPs = []netip.Addr{gateway}
	all := services{web.ID: web}
	for name, addr := range map[string]netip.Addr{"overlap": gateway, "last": broadcast, "first": first} {
		svc := compiletest.Service(name, addr.String(), "10.244.0.1")
		all[svc.ID] = svc
	}
	other := compiletest.Service("other", "10.96.0.2", "10.244.0.1")
	all[other.ID] = other
	c := scratch(all)
	for _, refused := range []bool{false, true, false} {
		network := subnet
		if !refused {
			network = nil
		}
		compiled := c.SetNetwork(network, want.NewTouched())
		if slices.Contains(compiled, other.ID) || c.SetNetwork(network, want.NewTouched()) != nil {
			t.Errorf("compiled %v", compiled)
		}
		served(t, c, map[string]bool{
			"10.96.0.1": true, gateway.String(): !refused, broadcast.String(): !refused, first.String(): !refused, "10.96.0.2": true,
		})
		problems := c.Problems(web.ID)
		if told := len(problems) == 1 && strings.Contains(problems[0].String(), "this node's gateway"); told != refused {
			t.Errorf("problems: %v", problems)
		}
	}
}

// No external IP takes an unused address of the node's networks, because a gateway or another host may need it. The address is allowed if it is in a
// configured range, or if it is a load balancer's address or a ClusterIP. Served frontends stay.
func TestSubnetsOfTheNode(t *testing.T) {
	unused, away := netip.MustParseAddr("192.0.2.77"), netip.MustParseAddr("203.0.113.1")
	for name, test := range map[string]struct {
		ask    func(*model.Service)
		ranges []netip.Prefix
		left   bool
		served bool
	}{
		"external IP":       {ask: func(s *model.Service) { s.ExternalIPs = []netip.Addr{unused, away} }},
		"allowed by range":  {ask: func(s *model.Service) { s.ExternalIPs = []netip.Addr{unused} }, ranges: []netip.Prefix{netip.PrefixFrom(unused, 32)}, served: true},
		"served before":     {ask: func(s *model.Service) { s.ExternalIPs = []netip.Addr{unused} }, left: true, served: true},
		"load balancer":     {ask: func(s *model.Service) { s.LoadBalancerIPs = []netip.Addr{unused} }, served: true},
		"overlapping range": {ask: func(s *model.Service) { s.ClusterIPs = []netip.Addr{unused} }, served: true},
	} {
		t.Run(name, func(t *testing.T) {
			web := compiletest.Service("web", "10.96.0.1", "10.244.0.1")
			test.ask(web)
			config := compiletest.Config()
			config.ExternalIPs.Allowed = test.ranges
			c := compile.NewCluster(config)
			c.SetNetwork(subnet, want.NewTouched())
			if test.left {
				c.SetLeft(slices.Values([]compile.FrontendKey{{Key: tcpAt("192.0.2.77:80")}}), want.NewTouched())
			}
			c.Update(services{web.ID: web}, want.NewTouched())
			served(t, c, map[string]bool{unused.String(): test.served})
			problems := c.Problems(web.ID)
			if told := len(problems) == 1 && strings.Contains(problems[0].String(), "in this node's network 192.0.2.0/24"); told != (!test.served || test.left) {
				t.Errorf("problems: %v", problems)
			}
			c.SetNetwork(nil, want.NewTouched())
			served(t, c, map[string]bool{unused.String(): true}) // the address is no longer in a network of the node
			c.SetNetwork(subnet, want.NewTouched())
			served(t, c, map[string]bool{unused.String(): true}) // served frontends stay
		})
	}
}

// An external IP does not inherit an unused address of the node's networks from another Service's load balancer, even if the external IP
// was claimed while the load balancer served the address.
func TestNothingIsInheritedFromALoadBalancer(t *testing.T) {
	const unused = "192.0.2.77"
	balancer, heir := at("balancer", 80, "", unused), at("heir", 80, unused, "")
	heir.ClusterIPs = addrs("10.96.0.2")
	c := scratch(services{balancer.ID: balancer})
	c.SetNetwork(subnet, touched())
	c.Update(services{heir.ID: heir}, touched())
	served(t, c, map[string]bool{unused: true})
	c.Update(services{balancer.ID: nil}, touched())
	served(t, c, map[string]bool{unused: false})
	own := at("balancer", 80, unused, unused) // a Service may move its address from one field to the other
	c.Update(services{own.ID: balancer}, touched())
	c.Update(services{own.ID: own}, touched())
	own = at("balancer", 80, unused, "")
	c.Update(services{own.ID: own}, touched())
	served(t, c, map[string]bool{unused: true})

	// After a restart, the kernel does not reveal which Service owned the frontend.
	for _, order := range [][]*model.Service{{balancer, heir}, {heir, balancer}} {
		c := scratch(nil)
		c.SetNetwork(subnet, touched())
		c.SetLeft(slices.Values([]compile.FrontendKey{{Key: tcpAt(unused + ":80")}}), touched())
		for _, svc := range order {
			c.Update(services{svc.ID: svc}, touched())
		}
		served(t, c, map[string]bool{unused: true})
		c.Update(services{balancer.ID: nil}, touched())
		served(t, c, map[string]bool{unused: false})
	}
}

// A change to a load balancer with an address in the node's network does not recompile Services with that external IP.
func TestBalancersCompileNoExternalIPs(t *testing.T) {
	const unused = "192.0.2.77"
	balancer, heir := at("balancer", 80, "", unused), at("heir", 80, unused, "")
	heir.ClusterIPs = addrs("10.96.0.2")
	c := scratch(services{balancer.ID: balancer})
	c.SetNetwork(subnet, touched())
	c.Update(services{heir.ID: heir}, touched())
	for _, next := range []*model.Service{compiletest.WithEndpoint(balancer, compiletest.Ready(compiletest.Pod(1))), nil, balancer} {
		if got := c.Update(services{balancer.ID: next}, touched()); len(got) != 1 {
			t.Errorf("compiled %v", got)
		}
	}
}

// No external IP takes the address of a nameserver, even if it is already served. A cluster's DNS may be the node's
// nameserver.
func TestNameserversAreOutOfReach(t *testing.T) {
	nameserver := netip.MustParseAddr("203.0.113.53")
	for name, test := range map[string]struct {
		ask    func(*model.Service)
		served bool
	}{
		"external IP":   {func(s *model.Service) { s.ExternalIPs = []netip.Addr{nameserver} }, false},
		"load balancer": {func(s *model.Service) { s.LoadBalancerIPs = []netip.Addr{nameserver} }, true},
		"ClusterIP":     {func(s *model.Service) { s.ClusterIPs = []netip.Addr{nameserver} }, true},
	} {
		t.Run(name, func(t *testing.T) {
			web := compiletest.Service("web", "10.96.0.1", "10.244.0.1")
			test.ask(web)
			c := scratch(services{web.ID: web})
			served(t, c, map[string]bool{nameserver.String(): true})
			c.SetNetwork(kernel.Network{nameserver: {Kind: kernel.Nameserver}}, want.NewTouched())
			served(t, c, map[string]bool{nameserver.String(): test.served})
			problems := c.Problems(web.ID)
			if told := len(problems) == 1 && strings.Contains(problems[0].String(), "a nameserver of this node"); told == test.served {
				t.Errorf("problems: %v", problems)
			}
		})
	}
}

// A public address that a cloud translates to the node's address also belongs to the node, although no interface has
// it.
func TestPublicAddressOfTheNode(t *testing.T) {
	public := netip.MustParseAddr("203.0.113.7")
	web := compiletest.Service("web", "10.96.0.1", "10.244.0.1")
	web.ExternalIPs = []netip.Addr{public}
	for mode, ports := range map[compile.AtNode]map[uint16]bool{
		compile.AtNodeNone:    {80: false, 22: false},
		compile.AtNodeGuarded: {80: true, 22: false},
		compile.AtNodeAll:     {80: true, 22: true},
	} {
		for port, served := range ports {
			web.Ports[0].Port = port
			config := compiletest.Config()
			config.ExternalIPs.AtNode = mode
			c := compile.NewCluster(config)
			here := &model.Node{Name: compiletest.Node, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), public}}
			c.UpdateNodes(map[string]*model.Node{here.Name: here}, want.NewTouched())
			c.Update(services{web.ID: web}, want.NewTouched())
			if is := c.Want().Servers[tcpAt(netip.AddrPortFrom(public, port).String())] != nil; is != served {
				t.Errorf("mode %v, port %d: served is %t", mode, port, is)
			}
		}
	}
}

// An endpoint at a broadcast address gets no traffic, because IPVS rejects it. An address may become a broadcast address later. A gateway
// can be an endpoint like any other host.
func TestBroadcastAddressIsNoEndpoint(t *testing.T) {
	svc := compiletest.Service("web", "10.96.0.1", broadcast.String(), first.String(), gateway.String())
	other := compiletest.Service("other", "10.96.0.2", "10.244.0.1")
	c := scratch(services{svc.ID: svc, other.ID: other})
	for _, step := range []struct {
		network      kernel.Network
		destinations int
	}{{nil, 3}, {subnet, 2}, {nil, 3}} {
		if compiled := c.SetNetwork(step.network, want.NewTouched()); slices.Contains(compiled, other.ID) {
			t.Errorf("compiled %v", compiled)
		}
		if ds := c.Want().Servers[tcpAt("10.96.0.1:80")].Destinations; len(ds) != step.destinations {
			t.Errorf("with network %v, got destinations %v", step.network, ds)
		}
		problems := c.Problems(svc.ID)
		told := len(problems) == 1 && problems[0].Value == broadcast.String() && strings.Contains(problems[0].Reason, "is the broadcast address")
		if told != (step.network != nil) {
			t.Errorf("problems: %v", problems)
		}
	}
}

// No Service can cut a node off from the API server, neither at the address that the agent connects to nor at the endpoints of default/kubernetes.
// The agent may reach the API server at a ClusterIP, and addresses of the node itself are never bound.
func TestAddressesOfTheAPIServer(t *testing.T) {
	learn := map[string]func(*compile.Cluster, string){
		"connected": func(c *compile.Cluster, addr string) {
			c.SetAPIServer([]netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr(addr), 6443)}, want.NewTouched())
		},
		"endpoint": func(c *compile.Cluster, addr string) {
			svc := kubernetesService(addr)
			c.Update(services{svc.ID: svc}, want.NewTouched())
			c.Update(services{svc.ID: nil}, want.NewTouched()) // the API server's known endpoints outlive its Service
		},
	}
	for name, learn := range learn {
		for addr, want := range map[string]bool{"203.0.113.1": false, "203.0.113.2": false, "192.0.2.1": true, "10.96.0.1": true} {
			web := compiletest.Service("web", "10.96.0.1", "10.244.0.1")
			web.ExternalIPs = []netip.Addr{netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("192.0.2.1")}
			web.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("203.0.113.2")}
			c := scratch(services{web.ID: web})
			served(t, c, map[string]bool{addr: true})
			learn(c, addr)
			served(t, c, map[string]bool{addr: want})
			problems := c.Problems(web.ID)
			if refused := len(problems) == 1 && strings.Contains(problems[0].String(), "the API server"); refused == want {
				t.Errorf("%s, %s: got problems %v", addr, name, problems)
			}
			learn(c, "203.0.113.77")
			served(t, c, map[string]bool{addr: true})
		}
	}
}

func kubernetesService(endpoint string) *model.Service {
	svc := compiletest.Service("kubernetes", "10.96.0.100", endpoint)
	svc.Slices[0].Name = "kubernetes"
	return svc
}

// Only the API server's own slice counts, so the author of another slice cannot reserve addresses.
func TestOtherSlicesOfTheAPIServerReserveNothing(t *testing.T) {
	web, api := compiletest.Service("web", "10.96.0.1", "10.244.0.1"), kubernetesService("203.0.113.1")
	web.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("203.0.113.1")}
	api.Slices[0].Name = "kubernetes-x"
	served(t, scratch(services{web.ID: web, api.ID: api}), map[string]bool{"203.0.113.1": true})
}

// A reload changes the settings, but not the facts about the host.
func TestReconfigureKeepsTheRest(t *testing.T) {
	cfg := compiletest.Config()
	thief := compiletest.Service("thief", gateway.String(), "10.244.0.1")
	c := compiletest.Cluster(cfg, services{thief.ID: thief}, home)
	c.SetNetwork(subnet, want.NewTouched())
	rules := c.Want().Base.Rulesets
	c.Reconfigure(compiletest.Config().Settings, want.NewTouched())
	served(t, c, map[string]bool{gateway.String(): false})
	if d := cmp.Diff(rules, c.Want().Base.Rulesets, cmpopts.EquateComparable(kernel.From{}, kernel.To{})); d != "" {
		t.Errorf("the rules changed (-before +after):\n%s", d)
	}
}

func served(t *testing.T, c *compile.Cluster, want map[string]bool) {
	t.Helper()
	for addr, served := range want {
		if got := c.Want().Servers[tcpAt(netip.AddrPortFrom(netip.MustParseAddr(addr), 80).String())] != nil; got != served {
			t.Errorf("%s is served: %t, want %t", addr, got, served)
		}
	}
}
