package compile_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// A change to one of many Services recompiles only that Service. So does a new node with an address of that Service.
func TestChangeOfOneServiceAmongMany(t *testing.T) {
	many := compiletest.Many(10_000, 1)
	id := model.ServiceID{Namespace: "default", Name: "svc-05000"}
	public := *many[id]
	public.ExternalIPs = []netip.Addr{netip.MustParseAddr("203.0.113.1")}
	many[id] = &public
	c := scratch(many)
	touched := want.NewTouched()
	got := c.Update(services{id: compiletest.WithEndpoint(many[id], compiletest.Ready(compiletest.Pod(1<<20)))}, touched)
	if !slices.Equal(got, []model.ServiceID{id}) || len(touched.Servers) != 2 {
		t.Errorf("compiled %v, touched %v", got, touched.Servers)
	}
	for addr, concerned := range map[string][]model.ServiceID{"192.0.2.9": nil, "203.0.113.1": {id}, "192.0.2.8": {id}} {
		node := &model.Node{Name: "node-b", Addresses: []netip.Addr{netip.MustParseAddr(addr)}}
		if addr == "192.0.2.8" { // node-b loses its first address
			c.UpdateNodes(map[string]*model.Node{"node-b": {Addresses: public.ExternalIPs}}, want.NewTouched())
		}
		if got := c.UpdateNodes(map[string]*model.Node{"node-b": node}, want.NewTouched()); !slices.Equal(got, concerned) {
			t.Errorf("after node-b got %s, compiled %v, want %v", addr, got, concerned)
		}
		c.UpdateNodes(map[string]*model.Node{"node-b": nil}, want.NewTouched())
	}
	if got := c.SetAddresses([]netip.Addr{home.Addresses[1], home.Addresses[0], home.Addresses[0]}, want.NewTouched()); got != nil {
		t.Errorf("compiled %d Services for the same addresses in a different order", len(got))
	}
}

// The first weight of a Node affects all Services. The agent compiles them in small batches, so a change to one Service does not wait for all of
// them.
func TestWeightsAreCompiledLater(t *testing.T) {
	many := compiletest.Many(10_000, 1)
	c := scratch(many)
	heavy := map[string]*model.Node{"node-b": {Name: "node-b", Weight: 5, WeightSet: true}}
	first := len(c.UpdateNodes(heavy, want.NewTouched()))
	id := model.ServiceID{Namespace: "default", Name: "svc-09999"}
	beside := len(c.Update(services{id: compiletest.WithEndpoint(many[id], compiletest.Ready(compiletest.Pod(1<<20)))}, want.NewTouched()))
	if all := first + beside + len(catchUp(c)); first > 2000 || beside > 30 || all != len(many) {
		t.Errorf("compiled %d Services, then %d, and %d in total", first, beside, all)
	}
}

// This node's pod ranges affect the rules, but not the Services' objects. The agent keeps them if the node's object is deleted or loses its ranges.
func TestPodRangesChangeTheRulesOnly(t *testing.T) {
	cfg := compiletest.Config()
	cfg.LocalByNodeCIDR = true
	c := compile.NewCluster(cfg)
	tell := func(name string, node *model.Node) *want.Touched {
		touched := want.NewTouched()
		c.UpdateNodes(map[string]*model.Node{name: node}, touched)
		if len(touched.Servers)+len(touched.Members)+len(touched.Addresses) > 0 {
			t.Errorf("touched %+v", touched)
		}
		return touched
	}
	ranges := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}
	if !tell(compiletest.Node, &model.Node{PodCIDRs: ranges}).Rules {
		t.Error("the pod ranges did not touch the rules")
	}
	for _, node := range []*model.Node{nil, {}} {
		if tell(compiletest.Node, node).Rules {
			t.Errorf("a change to node %v touches the rules", node)
		}
	}
	tell(compiletest.Node, nil)
	c.Reconfigure(cfg.Settings, want.NewTouched())
	if tell("node-b", &model.Node{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/24")}}).Rules {
		t.Error("another node's ranges touch the rules")
	}
	var b strings.Builder
	inspect.Base(&b, c.Want().Base)
	if !strings.Contains(b.String(), "-s 10.1.0.0/24 -j ACCEPT") || strings.Contains(b.String(), "10.244.0.0/16") {
		t.Errorf("base:\n%s", b.String())
	}
}

// Node ports at the node's primary addresses stay open if the Node object is deleted or loses its addresses.
func TestPrimaryAddressesOutliveTheNodeObject(t *testing.T) {
	cfg := compiletest.Config()
	cfg.NodePorts.Primary = true
	web := compiletest.Service("web", "10.96.0.1", "10.244.0.1")
	web.Ports[0].NodePort = 30080
	c := compiletest.Cluster(cfg, services{web.ID: web}, home)
	at := func(addr string) *model.Node {
		return &model.Node{Name: compiletest.Node, Addresses: []netip.Addr{netip.MustParseAddr(addr)}}
	}
	for _, step := range []struct {
		node *model.Node
		at   string
	}{
		{at("192.0.2.1"), "192.0.2.1:30080"},
		{nil, "192.0.2.1:30080"},
		{&model.Node{Name: compiletest.Node}, "192.0.2.1:30080"},
		{at("192.0.2.5"), "192.0.2.5:30080"},
	} {
		c.UpdateNodes(map[string]*model.Node{compiletest.Node: step.node}, want.NewTouched())
		if c.Want().Servers[tcpAt(step.at)] == nil || len(c.Want().Servers) != 2 {
			t.Errorf("node %v: want address %s, have virtual servers %v", step.node, step.at, c.Want().Servers)
		}
	}
}
