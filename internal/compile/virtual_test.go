package compile_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// No destination is at a virtual address, and no endpoint at another address is rejected.
func TestNoDestinationIsVirtual(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := compiletest.Services(t, "services")
		c := scratchIn(all, compiletest.Around(t, "around"))
		for key, s := range c.Want().Servers {
			for _, d := range s.Destinations {
				if len(c.Want().ServersAt(d.Addr.Addr())) > 0 {
					t.Fatalf("%s has the destination %s, which is a virtual address", key, d.Addr)
				}
			}
		}
		for id := range all {
			for _, p := range c.Problems(id) {
				if strings.Contains(p.Reason, "bound on this node") && len(c.Want().ServersAt(netip.MustParseAddr(p.Value))) == 0 {
					t.Fatalf("got the problem %s, but this node has no such address", p)
				}
			}
		}
	})
}

const (
	pod = "10.244.0.1"
	vip = "10.96.0.2" // of the Service "other"
)

// lead returns a Service with two endpoints: a pod, and an address that the Service returned by other may also have.
func lead(to string) *model.Service { return compiletest.Service("lead", "10.96.0.1", pod, to) }

func other(change func(*model.Service)) *model.Service {
	svc := compiletest.Service("other", vip, "10.244.0.2")
	if change != nil {
		change(svc)
	}
	return svc
}

func TestVirtualEndpoints(t *testing.T) {
	for name, try := range map[string]struct {
		to      string
		other   *model.Service
		refused bool
	}{
		"its own ClusterIP":         {"10.96.0.1", other(nil), true},
		"another's ClusterIP":       {vip, other(nil), true},
		"another's load balancer":   {"203.0.113.1", other(func(s *model.Service) { s.LoadBalancerIPs = addrs("203.0.113.1") }), true},
		"another's external IP":     {"203.0.113.1", other(func(s *model.Service) { s.ExternalIPs = addrs("203.0.113.1") }), true},
		"an unused address":         {"10.96.0.3", other(nil), false},
		"this node":                 {"192.0.2.1", other(nil), false},
		"this node, external IP":    {"192.0.2.1", other(func(s *model.Service) { s.ExternalIPs = addrs("192.0.2.1") }), false},
		"this node, its node ports": {"192.0.2.1", other(func(s *model.Service) { s.Ports[0].NodePort = 30080 }), false},
		"a refused external IP":     {"203.0.113.1", other(func(s *model.Service) { s.ExternalIPs, s.ClusterIPs = addrs("203.0.113.1"), addrs("fd00::1") }), false},
	} {
		t.Run(name, func(t *testing.T) {
			svc := lead(try.to)
			c := scratch(services{svc.ID: svc, try.other.ID: try.other})
			wantRefused(t, c, try.to, try.refused)
		})
	}
}

func addrs(texts ...string) []netip.Addr {
	var all []netip.Addr
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

// wantRefused checks that the Service lead uses both its endpoints or, if refused, uses only the pod and has a Problem.
func wantRefused(t *testing.T, c *compile.Cluster, addr string, refused bool) {
	t.Helper()
	var got []string
	for _, d := range c.Want().Servers[tcpAt("10.96.0.1:80")].Destinations {
		got = append(got, d.Addr.Addr().String())
	}
	expect := []string{pod}
	if !refused {
		expect = append(expect, addr)
	}
	slices.Sort(got)
	slices.Sort(expect)
	if !slices.Equal(got, expect) {
		t.Errorf("got destinations %v, want %v", got, expect)
	}
	problems := c.Problems(lead(addr).ID)
	if !refused && len(problems) > 0 {
		t.Errorf("problems: %v", problems)
	}
	if refused && (len(problems) != 1 || problems[0].Field != "EndpointSlice lead-1 endpoints.addresses" || problems[0].Value != addr) {
		t.Errorf("problems: %v", problems)
	}
}

// An endpoint is used again once no Service has its address.
func TestEndpointBecomesVirtual(t *testing.T) {
	svc, uninvolved := lead(vip), compiletest.Service("uninvolved", "10.96.0.9", "10.244.0.9")
	c := scratch(services{svc.ID: svc, uninvolved.ID: uninvolved})
	moved := other(func(s *model.Service) { s.ClusterIPs = addrs("10.96.0.3") })
	second := compiletest.Service("second", vip, "10.244.0.3")
	second.Ports[0].Port = 443
	update := func(change services, refused bool, concerned ...model.ServiceID) {
		t.Helper()
		if got := c.Update(change, want.NewTouched()); !slices.Equal(got, concerned) {
			t.Errorf("compiled %v, want %v", got, concerned)
		}
		wantRefused(t, c, vip, refused)
	}
	wantRefused(t, c, vip, false)
	update(services{moved.ID: other(nil)}, true, svc.ID, moved.ID)
	update(services{moved.ID: other(nil)}, true, moved.ID)
	update(services{moved.ID: moved}, false, svc.ID, moved.ID)
	update(services{moved.ID: other(nil)}, true, svc.ID, moved.ID)
	update(services{second.ID: second}, true, second.ID)
	update(services{moved.ID: nil}, true, moved.ID)
	update(services{second.ID: nil, moved.ID: other(nil)}, true, moved.ID, second.ID)
	update(services{moved.ID: nil}, false, svc.ID, moved.ID)
}

// An external IP is virtual unless it is an address of this node. The Node objects of other nodes make no difference.
func TestEndpointOnANodeWithAServiceAddress(t *testing.T) {
	const address = "203.0.113.1"
	svc, public := lead(address), other(func(s *model.Service) { s.ExternalIPs = addrs(address) })
	c := scratch(services{svc.ID: svc, public.ID: public})
	wantRefused(t, c, address, true)
	for name, step := range map[string]struct {
		gets, loses func()
		stays       bool
	}{
		"this node's interface": {
			func() { c.SetAddresses(append(addrs(address), home.Addresses...), want.NewTouched()) },
			func() { c.SetAddresses(home.Addresses, want.NewTouched()) },
			false,
		},
		"another node": {
			func() {
				c.UpdateNodes(map[string]*model.Node{"node-b": {Name: "node-b", Addresses: addrs(address)}}, want.NewTouched())
			},
			func() { c.UpdateNodes(map[string]*model.Node{"node-b": nil}, want.NewTouched()) },
			true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			step.gets()
			wantRefused(t, c, address, step.stays)
			step.loses()
			wantRefused(t, c, address, true)
		})
	}
}

// If a Service's only endpoint is at a virtual address, the port is refused as if it had no endpoints.
func TestOnlyEndpointIsVirtual(t *testing.T) {
	svc, with := compiletest.Service("lead", "10.96.0.1", vip), other(nil)
	without := compiletest.Service("lead", "10.96.0.1")
	c, same := scratch(services{svc.ID: svc, with.ID: with}), scratch(services{svc.ID: without, with.ID: with})
	if d := cmp.Diff(stateOf(same), stateOf(c)); d != "" {
		t.Errorf("-without endpoints +with a virtual endpoint only:\n%s", d)
	}
}

func stateOf(c *compile.Cluster) string {
	var b strings.Builder
	inspect.State(&b, c.Want())
	return b.String() + strings.Join(members(c.Want()), "\n")
}

// An endpoint that gets no connections does not count for health checks, so load balancers send no clients to its node.
func TestVirtualEndpointIsNotHealthy(t *testing.T) {
	svc := lead(vip)
	svc.ExternalLocal, svc.HealthCheckPort, svc.LoadBalancerIPs = true, 32000, addrs("203.0.113.1")
	c := scratch(services{svc.ID: svc})
	for _, step := range []struct {
		other *model.Service
		local int
	}{{nil, 2}, {other(nil), 1}, {nil, 2}} {
		c.Update(services{other(nil).ID: step.other}, want.NewTouched())
		if got := c.HealthPort(svc.ID).Local; got != step.local {
			t.Errorf("other is %v: got %d endpoints on this node, want %d", step.other, got, step.local)
		}
	}
}

// If a Service has a pod's address as an external IP, no Service can use that pod as an endpoint. Other pods stay.
func TestExternalIPOfAPod(t *testing.T) {
	const taken = "10.244.0.7"
	svc := lead(taken)
	thief := other(func(s *model.Service) { s.ExternalIPs = addrs(taken) })
	c := scratch(services{svc.ID: svc})
	c.Update(services{thief.ID: thief}, want.NewTouched())
	wantRefused(t, c, taken, true)
	cfg := compiletest.Config()
	cfg.ExternalIPs.Off = true
	c.Reconfigure(cfg.Settings, want.NewTouched())
	wantRefused(t, c, taken, false)
}

// A claim that loses binds no address, and neither does the Service's claim to all ports. In this test, a node port wins. Only the Node object has
// the address, so no interface has it unless a Service binds it.
func TestLostClaimBindsNothing(t *testing.T) {
	const address = "203.0.113.1"
	cfg := compiletest.Config()
	cfg.NodePorts.Primary = true
	around := compiletest.At()
	around.Nodes[compiletest.Node] = &model.Node{Name: compiletest.Node, Addresses: addrs(address)}
	loser := other(func(s *model.Service) {
		s.ExternalIPs, s.AffinityTimeout, s.Balancing.AllPorts = addrs(address), time.Hour, true
	})
	winner := compiletest.Service("winner", "10.96.0.3", "10.244.0.3")
	winner.Ports[0].NodePort = 80
	c := compiletest.Cluster(cfg, services{loser.ID: loser, winner.ID: winner, lead(address).ID: lead(address)}, around)
	wantRefused(t, c, address, false)
	c.Update(services{winner.ID: nil}, want.NewTouched())
	wantRefused(t, c, address, true)
}

// If no endpoint has a Service's address, compile does not search the Services for endpoints at that address.
func TestEndpointsAreIndexedByAddress(t *testing.T) {
	web, api := compiletest.Service("web", "10.96.0.1", pod), compiletest.Service("api", "10.96.0.2", pod)
	c := scratch(services{web.ID: web, api.ID: api})
	for _, step := range []struct {
		change services
		want   int
	}{
		{nil, 2},
		{services{web.ID: nil}, 1},
		{services{api.ID: compiletest.Service("api", "10.96.0.2")}, 0},
	} {
		c.Update(step.change, want.NewTouched())
		if got := c.EndpointsAt(netip.MustParseAddr(pod)); got != step.want {
			t.Errorf("got %d endpoints at %s, want %d", got, pod, step.want)
		}
	}
}
