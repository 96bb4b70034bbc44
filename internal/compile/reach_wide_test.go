package compile_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// found returns the virtual server that IPVS finds for a new connection (ip_vs_service_find in Linux), if that server accepts the
// connection.
func found(w *want.State, key kernel.ServerKey) *want.Server {
	at := func(port uint16) *want.Server {
		return w.Servers[kernel.ServerKey{Addr: netip.AddrPortFrom(key.Addr.Addr(), port), Protocol: key.Protocol}]
	}
	if s := at(key.Addr.Port()); s != nil {
		return s
	}
	if s := at(21); s != nil && key.Protocol == inet.TCP && (key.Addr.Port() == 20 || key.Addr.Port() >= 1024) {
		if s.Flags&kernel.FlagPersistent == 0 {
			return nil // the packet continues
		}
		return s
	}
	return at(0)
}

// A connection to a port that a Service serves reaches that Service's virtual server, regardless of other Services at the address. At the node's own
// addresses, ports without a virtual server still belong to the node, and no virtual server uses a health check port.
func TestVirtualServersTakeNoOtherPorts(t *testing.T) {
	world := compiletest.Small
	world.Ports = []uint16{21, 80, 8443, 32000}
	rapid.Check(t, func(t *rapid.T) {
		all := services{}
		for _, name := range world.Names {
			svc := world.Service(name, rand.New(rand.NewPCG(rapid.Uint64().Draw(t, name), 0)))
			all[svc.ID] = svc
		}
		around := compiletest.Around(t, "around")
		c := compiletest.Cluster(compiletest.Config(), all, around)
		w := c.Want()
		open := map[kernel.ServerKey]bool{}
		for m := range w.Members {
			if slices.Contains([]string{"KIPVS-4-CLUSTER-IP", "KIPVS-4-EXTERNAL", "KIPVS-6-CLUSTER-IP", "KIPVS-6-EXTERNAL"}, m.Set) {
				open[kernel.ServerKey{Addr: netip.AddrPortFrom(m.Element.Addr, m.Element.Port), Protocol: m.Element.Protocol}] = true
			}
		}
		for key := range open {
			if s := found(w, key); s == nil || !s.Serves(key) {
				t.Fatalf("%s is open, but leads to %+v", key, s)
			}
		}
		for _, addr := range around.Addresses {
			for _, port := range []uint16{20, 10250, 32000} {
				key := kernel.ServerKey{Addr: netip.AddrPortFrom(addr, port), Protocol: inet.TCP}
				if s := found(w, key); s != nil && s.Key != key {
					t.Fatalf("the node's own %s leads to %s", key, s.Key)
				}
				for id := range all {
					if s := w.Servers[key]; s != nil && s.Owner.Service != id && c.HealthPort(id).Port == port {
						t.Fatalf("%s is the health check port of %s, but leads to %s", key, id, s.Owner)
					}
				}
			}
		}
	})
}

// If the API server allocates a port for health checks, an external IP and a load balancer at the node's own address lose the port. Their
// Service keeps the port at its other addresses.
func TestHealthCheckPortAtTheNodesAddress(t *testing.T) {
	const port, own, other = 32000, "192.0.2.1", "203.0.113.7"
	for _, kind := range []string{"external", "load balancer"} {
		evil := compiletest.Service("evil", "10.96.0.7", "10.244.0.7")
		evil.Ports[0].Port = port
		if kind == "external" {
			evil.ExternalIPs = addrs(own, other)
		} else {
			evil.LoadBalancerIPs = addrs(own, other)
		}
		c := scratch(nil)
		c.SetListeners(nil, touched())
		c.Update(services{evil.ID: evil}, touched())
		probed := withHealthPort("probed", "10.96.0.1", port, 1)
		for _, exists := range []bool{false, true, false} {
			if c.Update(services{probed.ID: nil}, touched()); exists {
				c.Update(services{probed.ID: probed}, touched())
			}
			if isServed(c, own, port) == exists || !isServed(c, other, port) || (c.HealthPort(probed.ID).Port == port) != exists {
				t.Errorf("%s, probed %t: served is %t, problems %v", kind, exists, isServed(c, own, port), c.Problems(evil.ID))
			}
			if (len(c.Problems(evil.ID)) > 0) != exists {
				t.Errorf("%s, probed %t: got problems %v", kind, exists, c.Problems(evil.ID))
			}
		}
	}
}

// At each address, only one Service can have port 21 or an all-ports server (see isFTP). Port 21 has no affinity of its own.
func TestFTP(t *testing.T) {
	wide := compiletest.Service("wide", "10.96.0.1", "10.244.0.1")
	wide.AffinityTimeout, wide.Balancing.AllPorts, wide.Slices[0].Ports[0].Port = time.Hour, true, 80
	evil := compiletest.Service("evil", "10.96.0.2", "10.244.0.66")
	evil.Ports[0].Port, evil.AffinityTimeout, evil.ExternalIPs = 21, time.Hour, addrs("10.96.0.1")
	c := scratch(services{wide.ID: wide, evil.ID: evil})
	if isServed(c, "10.96.0.1", 21) || !isServed(c, "10.96.0.1", 0) || !isServed(c, "10.96.0.2", 21) {
		t.Errorf("got problems %v and %v", c.Problems(wide.ID), c.Problems(evil.ID))
	}
	if s := c.Want().Servers[tcpAt("10.96.0.2:21")]; s.Flags&kernel.FlagPersistent != 0 || len(c.Problems(evil.ID)) != 2 {
		t.Errorf("got %v and problems %v", s, c.Problems(evil.ID))
	}
	wide.Balancing.AllPorts = false
	if c.Update(services{wide.ID: wide}, touched()); !isServed(c, "10.96.0.1", 21) {
		t.Errorf("port 21 is not served next to a Service without an all-ports server: problems %v", c.Problems(evil.ID))
	}
	evil.Balancing.AllPorts, evil.Slices[0].Ports[0].Port = true, 21
	c.Update(services{evil.ID: evil}, touched())
	if s := c.Want().Servers[tcpAt("10.96.0.2:0")]; s == nil || s.Flags&kernel.FlagPersistent == 0 {
		t.Errorf("got %v and problems %v with port 21 in an all-ports server", s, c.Problems(evil.ID))
	}
}
