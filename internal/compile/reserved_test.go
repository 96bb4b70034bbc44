package compile_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

var (
	gateway   = netip.MustParseAddr("192.0.2.254")
	broadcast = netip.MustParseAddr("192.0.2.255")
)

// networkConfig is a node with a gateway and a broadcast address.
func networkConfig() compile.Config {
	cfg := compiletest.Config()
	cfg.Network = map[netip.Addr]string{gateway: "this node's gateway", broadcast: "the broadcast address"}
	return cfg
}

// No Service can cut a node off from its gateway, not even by a Service range that overlaps with the nodes' network.
func TestGatewayAndBroadcastAddressesAreRefused(t *testing.T) {
	web := compiletest.Service("web", "10.96.0.1", "10.244.0.1")
	web.LoadBalancerIPs = []netip.Addr{gateway}
	overlap, last := compiletest.Service("overlap", gateway.String(), "10.244.0.1"), compiletest.Service("last", broadcast.String(), "10.244.0.1")
	c := compiletest.Cluster(networkConfig(), services{web.ID: web, overlap.ID: overlap, last.ID: last}, home)
	served(t, c, map[string]bool{"10.96.0.1": true, gateway.String(): false, broadcast.String(): false})
	if problems := c.Problems(web.ID); len(problems) != 1 || !strings.Contains(problems[0].String(), "this node's gateway") {
		t.Errorf("problems: %v", problems)
	}
}

// No Service can cut a node off from the API server. Its ClusterIP may be the address at which the agent reaches it, and an address
// of the node itself is not bound anyway.
func TestAddressOfTheAPIServer(t *testing.T) {
	for addr, want := range map[string]bool{"203.0.113.1": false, "192.0.2.1": true, "10.96.0.1": true} {
		cfg := compiletest.Config()
		cfg.APIServer = netip.MustParseAddr(addr)
		web := compiletest.Service("web", "10.96.0.1", "10.244.0.1")
		web.ExternalIPs = []netip.Addr{netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("192.0.2.1")}
		c := compiletest.Cluster(cfg, services{web.ID: web}, home)
		served(t, c, map[string]bool{addr: want})
		problems := c.Problems(web.ID)
		if refused := len(problems) == 1 && strings.Contains(problems[0].String(), "the API server"); refused == want {
			t.Errorf("%s: problems %v", addr, problems)
		}
	}
}

// A reload changes settings. Host facts stay.
func TestReconfigureKeepsHostFacts(t *testing.T) {
	cfg := networkConfig()
	cfg.RandomFully = true
	thief := compiletest.Service("thief", gateway.String(), "10.244.0.1")
	c := compiletest.Cluster(cfg, services{thief.ID: thief}, home)
	rules := c.Want().Base.Rulesets
	c.Reconfigure(compiletest.Config().Settings, want.NewTouched())
	served(t, c, map[string]bool{gateway.String(): false})
	if d := cmp.Diff(rules, c.Want().Base.Rulesets); d != "" {
		t.Errorf("rules (-before +after)\n%s", d)
	}
}

// served compares which addresses have a virtual server.
func served(t *testing.T, c *compile.Cluster, want map[string]bool) {
	t.Helper()
	for addr, served := range want {
		if got := c.Want().Servers[tcpAt(netip.AddrPortFrom(netip.MustParseAddr(addr), 80).String())] != nil; got != served {
			t.Errorf("%s is served: %t, want %t", addr, got, served)
		}
	}
}
