package compile_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
)

// Whoever may write a Service must not be able to cut every node off from the API server or from its gateway. The ClusterIP through
// which an agent may reach the API server is no such address, and one of the node's own is not bound anyway. Whoever makes the
// cluster's Service range overlap with the nodes' network must not lose the gateway either.
func TestReservedAddresses(t *testing.T) {
	apiServer, gateway, own := netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("192.0.2.254"), netip.MustParseAddr("192.0.2.1")
	broadcast := netip.MustParseAddr("192.0.2.255")
	kubernetes := netip.MustParseAddr("10.96.0.1")
	cfg := compiletest.Config()
	cfg.Reserved = map[netip.Addr]string{apiServer: "the API server", own: "the API server", kubernetes: "the API server"}
	cfg.Network = map[netip.Addr]string{gateway: "this node's gateway", broadcast: "the broadcast address"}
	thief := compiletest.Service("thief", kubernetes.String(), "10.244.0.1")
	thief.ExternalIPs = []netip.Addr{apiServer, own}
	thief.LoadBalancerIPs = []netip.Addr{gateway}
	overlap, last := compiletest.Service("overlap", gateway.String(), "10.244.0.1"), compiletest.Service("last", broadcast.String(), "10.244.0.1")
	c := compiletest.Cluster(cfg, services{thief.ID: thief, overlap.ID: overlap, last.ID: last}, home)
	for addr, served := range map[netip.Addr]bool{apiServer: false, gateway: false, broadcast: false, own: true, kubernetes: true} {
		if got := c.Want().Servers[tcpAt(netip.AddrPortFrom(addr, 80).String())] != nil; got != served {
			t.Errorf("%s is served: %t", addr, got)
		}
	}
	var texts []string
	for _, p := range c.Problems(thief.ID) {
		texts = append(texts, p.String())
	}
	if all := strings.Join(texts, "\n"); len(texts) != 2 || !strings.Contains(all, "the API server") || !strings.Contains(all, "this node's gateway") {
		t.Errorf("problems:\n%s", all)
	}
}
