package compile_test

import (
	"cmp"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// The frontends and Problems of one Service are bounded, although addresses, ports and source ranges multiply. Its ClusterIP is still
// served.
func TestOneServiceIsBounded(t *testing.T) {
	svc := compiletest.Service("bomb", "10.96.0.1", "10.244.0.1")
	for i := range 999 {
		svc.Ports = append(svc.Ports, model.ServicePort{Name: fmt.Sprint("p", i), Protocol: inet.TCP, Port: uint16(1000 + i)})
	}
	for i := range 1000 {
		svc.ExternalIPs = append(svc.ExternalIPs, netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}))
		svc.SourceRanges = append(svc.SourceRanges, netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}), 32))
	}
	svc.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("192.0.2.77")} // 1,000 ports times 1,000 ranges: not served
	c := scratch(services{svc.ID: svc})
	if n := len(c.Want().Servers); n != 1000+32_000 {
		t.Errorf("got %d virtual servers", n)
	}
	if len(c.Want().ServersAt(svc.LoadBalancerIPs[0])) > 0 || len(c.Want().ServersAt(svc.ClusterIPs[0])) == 0 {
		t.Error("the load balancer's address is served, or the ClusterIP is not")
	}
	if ps := c.Problems(svc.ID); len(ps) != 17 || !strings.Contains(ps[16].Reason, "more problems") {
		t.Errorf("%d problems", len(ps))
	}
}

// The bounds admit Services that are large but not hostile, with a load balancer and node ports.
func TestLargeServicesAreServed(t *testing.T) {
	for _, c := range []struct{ ports, endpoints int }{{1, 5000}, {100, 250}, {1000, 10}} {
		svc := compiletest.Large("large", c.ports, c.endpoints)
		svc.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("198.51.100.9"), netip.MustParseAddr("2001:db8:9::9")}
		for i := range svc.Ports {
			svc.Ports[i].NodePort = 30000 + svc.Ports[i].Port
		}
		cluster := scratch(services{svc.ID: svc})
		if ps := cluster.Problems(svc.ID); len(ps) > 0 {
			t.Errorf("%+v: %s", c, ps[0])
		}
		if servers := cluster.Want().Servers; len(servers) != 6*c.ports {
			t.Errorf("%+v: got %d virtual servers", c, len(servers))
		}
		for key, s := range cluster.Want().Servers {
			if len(s.Destinations) != c.endpoints {
				t.Fatalf("%s has %d destinations", key, len(s.Destinations))
			}
		}
	}
}

// Anything that a Service requests beyond the bounds becomes a Problem.
func TestBoundsHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := scratch(nil)
		maxPorts, maxEndpoints, maxExternal, maxDestinations := c.SmallBounds(32)
		number := func(name string, most int) int { // each power of two is equally likely
			return rapid.IntRange(0, most>>rapid.IntRange(0, 10).Draw(t, name+" halved")).Draw(t, name)
		}
		svc := compiletest.Large("any", 1+number("ports", 2*maxPorts), number("endpoints", 2*maxEndpoints))
		for i := range number("external IPs", 2*maxExternal) {
			svc.ExternalIPs = append(svc.ExternalIPs, netip.AddrFrom4([4]byte{203, 1, byte(i >> 8), byte(i)}))
		}
		for i := range number("source ranges", 2*maxExternal) {
			svc.SourceRanges = append(svc.SourceRanges, netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}), 32))
		}
		svc.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("192.0.2.77")}
		for i := range number("node ports", len(svc.Ports)) {
			svc.Ports[i].NodePort = 30000 + svc.Ports[i].Port
		}
		c.Update(services{svc.ID: svc}, want.NewTouched())
		served, all, external, destinations := 0, map[inet.Family]int{}, 0, 0
		for key, s := range c.Want().Servers {
			switch addr := key.Addr.Addr(); {
			case slices.Contains(svc.ClusterIPs, addr):
				served++
				all[key.Family()] += len(s.Destinations)
			default:
				destinations += len(s.Destinations)
				if !slices.Contains(home.Addresses, addr) {
					external++
				}
			}
		}
		for m := range c.Want().Members {
			if strings.HasSuffix(m.Set, "ALLOWED") {
				external++
			}
		}
		if served > 2*maxPorts || max(all[inet.IPv4], all[inet.IPv6]) > maxEndpoints || external > maxExternal || destinations > maxDestinations {
			t.Errorf("served %d virtual servers at ClusterIPs with %v endpoints, and %d elsewhere with %d", served, all, external, destinations)
		}
		if served < 2*len(svc.Ports) && len(c.Problems(svc.ID)) == 0 {
			t.Error("ports are not served, but there is no Problem")
		}
	})
}

// The kernel's scheduler tables for a Service use at most 32 MiB. A Service that would need more is served at the same addresses with
// another scheduler, and has a Problem.
func TestTablesOfSchedulersAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		svc := compiletest.Large("any", rapid.IntRange(1, 40).Draw(t, "ports"), 1)
		for i := range rapid.IntRange(0, 300).Draw(t, "external IPs") {
			svc.ExternalIPs = append(svc.ExternalIPs, netip.AddrFrom4([4]byte{203, 1, byte(i >> 8), byte(i)}))
		}
		nodePorts := rapid.IntRange(0, len(svc.Ports)).Draw(t, "node ports")
		for i := range nodePorts {
			svc.Ports[i].NodePort = 30000 + svc.Ports[i].Port
		}
		cfg := compiletest.Config()
		svc.Balancing.Scheduler = rapid.SampledFrom(append([]string{""}, model.Schedulers...)).Draw(t, "scheduler")
		cfg.Scheduler = rapid.SampledFrom(model.Schedulers).Draw(t, "scheduler of the node")
		c := compiletest.Cluster(cfg, services{svc.ID: svc}, home)
		size, names := 0, map[string]int{}
		for _, s := range c.Want().Servers {
			size += model.SchedulerNamed(s.Scheduler).TableKiB
			names[s.Scheduler]++
		}
		if all := len(svc.Ports)*(2+len(svc.ExternalIPs)) + 2*nodePorts; size > 32<<10 || len(c.Want().Servers) != all || len(names) != 1 {
			t.Fatalf("the tables use %d KiB, with schedulers %v of %d virtual servers", size, names, all)
		}
		asked := model.SchedulerNamed(cmp.Or(svc.Balancing.Scheduler, cfg.Scheduler))
		said := slices.ContainsFunc(c.Problems(svc.ID), func(p model.Problem) bool {
			return p.Value == asked.Name && strings.Contains(p.Reason, "kernel memory")
		})
		setting := described(c, svc.ID)[0].Settings[0]
		if refused := names[asked.Name] == 0; said != refused || strings.Contains(setting.From, "too many virtual servers for "+asked.Name) != refused {
			t.Fatalf("the Service requests %s, but has the schedulers %v, the description %v and the problems %v", asked.Name, names, setting, c.Problems(svc.ID))
		}
	})
}

// Node ports also count toward the size of the scheduler tables.
func TestTablesAtNodePortsAreBounded(t *testing.T) {
	for ports, want := range map[int]string{256: "mh", 257: "rr"} { // each at two ClusterIPs, and as a node port in two families
		svc := compiletest.Large("any", ports, 1)
		svc.Balancing.Scheduler = "mh"
		for i := range svc.Ports {
			svc.Ports[i].NodePort = 30000 + svc.Ports[i].Port
		}
		for key, s := range scratch(services{svc.ID: svc}).Want().Servers {
			if s.Scheduler != want {
				t.Fatalf("%d ports: %s has %s, want %s", ports, key, s.Scheduler, want)
			}
		}
	}
}

// For the largest Services that the API server accepts, allocations are proportional to the size of the objects, because compile stops multiplying
// ports by addresses at the bounds.
func TestCompileTimeIsBounded(t *testing.T) {
	const ports, addresses = 40_000, 40_000
	for name, change := range map[string]func(*model.Service){
		"addresses": func(svc *model.Service) {
			for i := range addresses {
				svc.ExternalIPs = append(svc.ExternalIPs, netip.AddrFrom4([4]byte{203, 1, byte(i >> 8), byte(i)}))
			}
		},
		"refused addresses": func(svc *model.Service) {
			svc.ExternalIPs = slices.Repeat([]netip.Addr{netip.MustParseAddr("169.254.169.254")}, addresses)
		},
		"an address of the node": func(svc *model.Service) { svc.ExternalIPs = slices.Repeat(home.Addresses[:1], addresses) },
		"one address many times": func(svc *model.Service) {
			svc.ExternalIPs = slices.Repeat([]netip.Addr{netip.MustParseAddr("203.0.113.1")}, addresses)
			svc.Slices = compiletest.Large("x", 1, 10).Slices
		},
		"ready endpoints of other ports": func(svc *model.Service) {
			svc.Slices = compiletest.Large("x", 1, 200_000).Slices
			for _, slice := range svc.Slices {
				slice.Ports = []model.EndpointPort{{Name: slice.Name, Protocol: inet.UDP, Port: 1}}
			}
		},
	} {
		svc := compiletest.Large("any", ports, 0)
		change(svc)
		size := len(svc.Ports) + len(svc.ExternalIPs)
		for _, slice := range svc.Slices {
			size += len(slice.Ports) + len(slice.Endpoints)
		}
		c := scratch(nil)
		n := testing.AllocsPerRun(1, func() {
			c.Learn(compile.Facts{Services: services{svc.ID: svc}})
			c.Unsettled(false)
			c.Compile(want.NewTouched())
		})
		t.Logf("%s: %.0f allocations for %d parts", name, n, size)
		if n > 30*float64(size) {
			t.Errorf("%s: %.0f allocations for %d parts", name, n, size)
		}
		if n := c.Rejected(svc.ID); n > 16 {
			t.Errorf("%s: %d problems are kept", name, n)
		}
	}
}

// Sharing one affinity among all ports takes no more memory than one affinity for each port, even if there are thousands of ports.
func TestAllPortsCostIsBounded(t *testing.T) {
	cost := func(all bool) uint64 {
		svc := compiletest.Service("any", "10.96.0.1", "10.244.0.1")
		svc.AffinityTimeout, svc.Balancing.AllPorts = time.Hour, all
		svc.Ports, svc.Slices[0].Ports, svc.Slices[0].Endpoints[0].Node = nil, nil, ""
		for i := range 6 {
			name, protocol, port := fmt.Sprint("p", i), []inet.Protocol{inet.TCP, inet.UDP, inet.SCTP}[i%3], uint16(90-i)
			svc.Ports = append(svc.Ports, model.ServicePort{Name: name, Protocol: protocol, Port: port})
			svc.Slices[0].Ports = append(svc.Slices[0].Ports, model.EndpointPort{Name: name, Protocol: protocol, Port: port})
		}
		for i := range 500 {
			svc.ExternalIPs = append(svc.ExternalIPs, netip.AddrFrom4([4]byte{203, 1, byte(i >> 8), byte(i)}))
		}
		c := scratch(nil)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		c.Update(services{svc.ID: svc}, want.NewTouched())
		c.Served(svc.ID)
		runtime.ReadMemStats(&after)
		for _, s := range c.Fragment(svc.ID) {
			if all && (len(s.Ports) != 2 || !slices.IsSortedFunc(s.Members, kernel.Member.Compare)) {
				t.Fatalf("%s has ports %v and entries %v", s.Key, s.Ports, s.Members)
			}
		}
		return after.TotalAlloc - before.TotalAlloc
	}
	each, all := cost(false), cost(true)
	t.Logf("one affinity for each port uses %d KiB, and one for all ports uses %d KiB", each>>10, all>>10)
	if all > 2*each {
		t.Errorf("one affinity for all ports uses %d bytes, but one for each port uses %d", all, each)
	}
}

// If a set is nearly full, the Services with the most entries are refused. They are served again once there is room.
func TestFullSetRefusesTheLargest(t *testing.T) {
	all := compiletest.Many(100, 2)
	var greedy []model.ServiceID
	for i := range 3 {
		svc := compiletest.Large(fmt.Sprint("greedy-", i), 100, 100)
		svc.ClusterIPs[0], svc.ClusterIPs[1] = netip.AddrFrom4([4]byte{10, 200, 0, byte(i)}), netip.AddrFrom16([16]byte{0: 0xfd, 1: 2, 15: byte(i)})
		for _, slice := range svc.Slices {
			for j := range slice.Endpoints { // each Service has its own pods
				a := slice.Endpoints[j].Addr.AsSlice()
				a[len(a)-3] = byte(100 + i)
				slice.Endpoints[j].Addr, _ = netip.AddrFromSlice(a)
			}
		}
		all[svc.ID] = svc
		greedy = append(greedy, svc.ID)
	}
	c := scratch(nil)
	c.SetRoom(20_000)
	served := func() string {
		n := map[string]int{}
		for _, s := range c.Want().Servers {
			if strings.HasPrefix(s.Owner.Service.Name, "greedy") {
				n["greedy"]++
			} else {
				n["others"]++
			}
		}
		return fmt.Sprint(n["greedy"], " ", n["others"])
	}
	c.Update(all, want.NewTouched())
	if got := served(); c.Want().Fullest() > 20_000 || !strings.HasSuffix(got, " 100") {
		t.Errorf("the fullest set has %d entries; virtual servers (greedy, others) %s", c.Want().Fullest(), got)
	}
	for _, id := range greedy {
		if ps := c.Problems(id); len(ps) == 0 || !strings.Contains(ps[0].Reason, "nearly full") {
			t.Errorf("%s: %v", id, ps)
		}
	}
	c.Update(services{greedy[0]: nil, greedy[1]: nil}, want.NewTouched())
	if got := served(); got != "200 100" || len(c.Problems(greedy[2])) > 0 {
		t.Errorf("there is room again, but virtual servers (greedy, others) are %s, problems %v", got, c.Problems(greedy[2]))
	}
}
