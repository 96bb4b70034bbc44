package compile_test

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

type services = map[model.ServiceID]*model.Service

// home is a node in a cluster of one.
var home = compiletest.At("192.0.2.1", "fd00:2::1")

func scratch(all services) *compile.Cluster { return scratchIn(all, home) }

func scratchIn(all services, in compiletest.Surroundings) *compile.Cluster {
	return compiletest.Cluster(compiletest.Config(), all, in)
}

// describe prints everything that a cluster returns.
func describe(c *compile.Cluster, ids []model.ServiceID) string {
	var b strings.Builder
	inspect.State(&b, c.Want())
	for _, list := range [][]string{members(c.Want()), addresses(c.Want())} {
		b.WriteString(strings.Join(list, "\n") + "\n")
	}
	for _, id := range ids {
		for _, p := range c.Problems(id) {
			fmt.Fprintln(&b, p)
		}
		fmt.Fprintln(&b, id, c.HealthPort(id))
	}
	fmt.Fprintln(&b, c.Services(), "services")
	return b.String()
}

func members(w *want.State) []string {
	list := []string{}
	for m := range w.Members {
		list = append(list, m.String())
	}
	slices.Sort(list)
	return list
}

func addresses(w *want.State) []string {
	list := []string{}
	for a := range w.Addresses {
		list = append(list, fmt.Sprintf("%s used by %d", a, len(w.ServersAt(a))))
	}
	slices.Sort(list)
	return list
}

func allIDs() []model.ServiceID {
	var ids []model.ServiceID
	for _, name := range compiletest.Small.Names {
		ids = append(ids, model.ServiceID{Namespace: "default", Name: name})
	}
	return ids
}

// I2: the wanted state depends on the current Services, nodes and addresses, not on the order of changes that led to them.
func TestHistoryDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := compile.NewCluster(compiletest.Config())
		now, in := services{}, compiletest.At()
		for i := range rapid.IntRange(1, 5).Draw(t, "steps") {
			next, around := compiletest.Services(t, fmt.Sprint("step ", i)), in
			if rapid.Bool().Draw(t, "elsewhere") {
				around = compiletest.Around(t, fmt.Sprint("around ", i))
			}
			changes := compiletest.Between(now, next)
			for _, id := range rapid.SliceOfDistinct(rapid.SampledFrom(allIDs()), rapid.ID[model.ServiceID]).Draw(t, "unchanged") {
				delete(changes, id)
				if delete(next, id); now[id] != nil {
					next[id] = now[id]
				}
			}
			events := slices.Concat(
				inParts(t, changes, func(part services) { c.Update(part, want.NewTouched()) }),
				inParts(t, compiletest.NodesBetween(in.Nodes, around.Nodes), func(part map[string]*model.Node) {
					c.UpdateNodes(part, want.NewTouched())
				}),
				[]func(){func() { c.SetAddresses(around.Addresses, want.NewTouched()) }},
			)
			for _, i := range rapid.Permutation(indices(events)).Draw(t, "order") {
				events[i]()
			}
			now, in = next, around
			if d := cmp.Diff(describe(scratchIn(now, in), allIDs()), describe(c, allIDs())); d != "" {
				t.Fatalf("-from scratch +after a history of changes:\n%s", d)
			}
		}
	})
}

// inParts splits changes at random, and repeats some.
func inParts[K comparable, V any, M map[K]V](t *rapid.T, changes M, tell func(M)) []func() {
	var events []func()
	var left []K
	for k := range changes {
		left = append(left, k)
	}
	slices.SortFunc(left, func(a, b K) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	left = rapid.Permutation(left).Draw(t, "parts")
	for len(left) > 0 {
		n := rapid.IntRange(1, len(left)).Draw(t, "part")
		part := M{}
		for _, k := range left[:n] {
			part[k] = changes[k]
		}
		for range rapid.IntRange(1, 2).Draw(t, "times") {
			events = append(events, func() { tell(part) })
		}
		left = left[n:]
	}
	return events
}

func indices[T any](list []T) []int {
	all := make([]int, len(list))
	for i := range all {
		all[i] = i
	}
	return all
}

// Touched names everything that has changed, so a plan that compares only that misses nothing.
func TestTouchedNamesEveryChange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before, after := compiletest.Around(t, "before"), compiletest.Around(t, "after")
		all := compiletest.Services(t, "services")
		c, old, touched := scratchIn(all, before), scratchIn(all, before).Want(), want.NewTouched()
		if rapid.Bool().Draw(t, "addresses") {
			c.SetAddresses(after.Addresses, touched)
		}
		c.UpdateNodes(compiletest.NodesBetween(before.Nodes, after.Nodes), touched)
		for key, server := range c.Want().Servers {
			if _, named := touched.Servers[key]; !named && !reflect.DeepEqual(old.Servers[key], server) {
				t.Fatalf("%s was %v, is %v", key, old.Servers[key], server)
			}
		}
		for key := range old.Servers {
			if _, named := touched.Servers[key]; !named && c.Want().Servers[key] == nil {
				t.Fatalf("%s is gone", key)
			}
		}
		for m := range changed(old.Members, c.Want().Members) {
			if _, named := touched.Members[m]; !named {
				t.Fatalf("member %s", m)
			}
		}
		for a := range changed(old.Addresses, c.Want().Addresses) {
			if _, named := touched.Addresses[a]; !named {
				t.Fatalf("address %s", a)
			}
		}
	})
}

// changed lists what only one of two sequences has.
func changed[T comparable](a, b func(func(T) bool)) map[T]bool {
	in := map[T]int{}
	for x := range a {
		in[x]++
	}
	for x := range b {
		in[x]--
	}
	only := map[T]bool{}
	for x, n := range in {
		if n != 0 {
			only[x] = true
		}
	}
	return only
}

// I12: Update compiles the Services that changed, those that claim what these claim or claimed, those with an endpoint at an address that
// became or ceased to be virtual because of them, and no other.
func TestOnlyTheConcernedAreCompiled(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before, after := compiletest.Services(t, "before"), compiletest.Services(t, "after")
		c := scratch(before)
		changed := rapid.SampledFrom(allIDs()).Draw(t, "changed")
		change := services{changed: after[changed]}
		want1 := map[model.ServiceID]bool{changed: true}
		keys := claimedBy(before[changed])
		maps.Copy(keys, claimedBy(after[changed]))
		for id, svc := range before {
			for key := range claimedBy(svc) {
				if keys[key] {
					want1[id] = true
				}
			}
		}
		flipped := flippedBy(before, changed, after[changed])
		for id, svc := range before {
			if slices.ContainsFunc(endpointsOf(svc), func(a netip.Addr) bool { return flipped[a] }) {
				want1[id] = true
			}
		}
		got := c.Update(change, want.NewTouched())
		expect := slices.SortedFunc(maps.Keys(want1), model.ServiceID.Compare)
		if !slices.Equal(got, expect) {
			t.Fatalf("compiled %v, want %v", got, expect)
		}
	})
}

// flippedBy lists the addresses that become or cease to be virtual when one Service changes.
func flippedBy(before services, id model.ServiceID, svc *model.Service) map[netip.Addr]bool {
	next := maps.Clone(before)
	if next[id] = svc; svc == nil {
		delete(next, id)
	}
	return changed(scratch(before).Want().Addresses, scratch(next).Want().Addresses)
}

func endpointsOf(svc *model.Service) []netip.Addr {
	var addrs []netip.Addr
	for _, slice := range svc.Slices {
		for _, e := range slice.Endpoints {
			addrs = append(addrs, e.Addr)
		}
	}
	return addrs
}

// claimedBy lists the keys that a Service asks for at home.
func claimedBy(svc *model.Service) map[string]bool {
	keys := map[string]bool{}
	if svc == nil {
		return keys
	}
	families := map[inet.Family]bool{}
	for _, ip := range svc.ClusterIPs {
		families[inet.FamilyOf(ip)] = true
	}
	for _, p := range svc.Ports {
		for _, ip := range svc.ClusterIPs {
			if !slices.Contains(home.Addresses, ip) {
				keys[fmt.Sprint(ip, p.Port, p.Protocol)] = true
			}
		}
		for _, ip := range slices.Concat(svc.LoadBalancerIPs, svc.ExternalIPs) {
			if families[inet.FamilyOf(ip)] {
				keys[fmt.Sprint(ip, p.Port, p.Protocol)] = true
			}
		}
		if svc.Balancing.AllPorts {
			for _, ip := range slices.Concat(svc.ClusterIPs, svc.LoadBalancerIPs, svc.ExternalIPs) {
				if families[inet.FamilyOf(ip)] && !slices.Contains(home.Addresses, ip) {
					keys[fmt.Sprint(ip, 0, p.Protocol)] = true
				}
			}
		}
		for _, ip := range home.Addresses {
			if families[inet.FamilyOf(ip)] && p.NodePort != 0 {
				keys[fmt.Sprint(ip, p.NodePort, p.Protocol)] = true
			}
		}
	}
	return keys
}

// A frontend passes to the next best claim when the best one is withdrawn, and back.
func TestClaimsChangeHands(t *testing.T) {
	older := compiletest.Service("older", "10.96.0.1", "10.244.0.1")
	younger := compiletest.Service("younger", "10.96.0.1", "10.244.0.2")
	younger.Created = older.Created.Add(1)
	c := scratch(services{older.ID: older, younger.ID: younger})
	key := kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: inet.TCP}
	owner := func(want string, problemsOf ...model.ServiceID) {
		t.Helper()
		if got := c.Want().Servers[key].Owner.String(); got != want {
			t.Errorf("%s wins, want %s", got, want)
		}
		for _, id := range []model.ServiceID{older.ID, younger.ID} {
			if has := len(c.Problems(id)) > 0; has != slices.Contains(problemsOf, id) {
				t.Errorf("%s has problems %v", id, c.Problems(id))
			}
		}
	}
	owner("default/older:http", younger.ID)
	c.Update(services{older.ID: nil}, want.NewTouched())
	owner("default/younger:http")
	c.Update(services{older.ID: older}, want.NewTouched())
	owner("default/older:http", younger.ID)
	elsewhere := compiletest.Service("older", "10.96.0.2", "10.244.0.1")
	c.Update(services{older.ID: elsewhere}, want.NewTouched())
	owner("default/younger:http")
	recreated := compiletest.Service("older", "10.96.0.1", "10.244.0.1")
	recreated.Created = younger.Created.Add(1)
	c.Update(services{older.ID: recreated}, want.NewTouched())
	owner("default/younger:http", older.ID)
}

// The author of a Service can write any address into it. However early that is, it takes no frontend from the Service that the API server
// allocates the address to.
func TestExternalIPTakesNothing(t *testing.T) {
	squatter := compiletest.Service("squatter", "10.96.0.66", "10.244.0.66")
	squatter.ExternalIPs = []netip.Addr{netip.MustParseAddr("10.96.0.1"), home.Addresses[0]}
	squatter.Ports = append(squatter.Ports, model.ServicePort{Name: "node", Protocol: inet.TCP, Port: 30080})
	younger := compiletest.Service("younger", "10.96.0.1", "10.244.0.2")
	younger.Created = squatter.Created.Add(1)
	younger.Ports[0].NodePort = 30080
	c := scratch(services{squatter.ID: squatter})
	c.Update(services{younger.ID: younger}, want.NewTouched())
	for _, at := range []string{"10.96.0.1:80", "192.0.2.1:30080"} {
		if s := c.Want().Servers[tcpAt(at)]; s == nil || s.Owner.String() != "default/younger:http" {
			t.Errorf("%s belongs to %v", at, s)
		}
	}
	if ps := c.Problems(squatter.ID); len(ps) != 2 || ps[0].Field != "spec.externalIPs[0]" {
		t.Errorf("problems: %v", ps)
	}
}

// Addresses, ports and source ranges multiply. What one Service may ask for is bounded, and so are its Problems. Its ClusterIP is served
// all the same.
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
		t.Errorf("%d virtual servers", n)
	}
	if c.Want().HasAddress(svc.LoadBalancerIPs[0]) || !c.Want().HasAddress(svc.ClusterIPs[0]) {
		t.Error("the load balancer's address is served, or the ClusterIP is not")
	}
	if ps := c.Problems(svc.ID); len(ps) != 17 || !strings.Contains(ps[16].Reason, "more problems") {
		t.Errorf("%d problems", len(ps))
	}
}

func tcpAt(addr string) kernel.ServerKey {
	return kernel.ServerKey{Addr: netip.MustParseAddrPort(addr), Protocol: inet.TCP}
}

// After all Services are deleted, no member or address is left.
func TestNothingIsLeft(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := scratch(compiletest.Services(t, "services"))
		gone := services{}
		for _, id := range allIDs() {
			gone[id] = nil
		}
		c.Update(gone, want.NewTouched())
		if d := cmp.Diff(describe(scratch(nil), allIDs()), describe(c, allIDs())); d != "" {
			t.Fatalf("-empty +emptied:\n%s", d)
		}
		if n := c.Remembered(); n != 0 {
			t.Fatalf("%d claims and addresses are left over", n)
		}
	})
}

// A change of one Service among many compiles that Service only, and so does a node whose address one Service names.
func TestOneOfMany(t *testing.T) {
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
		if addr == "192.0.2.8" { // it loses the first address
			c.UpdateNodes(map[string]*model.Node{"node-b": {Addresses: public.ExternalIPs}}, want.NewTouched())
		}
		if got := c.UpdateNodes(map[string]*model.Node{"node-b": node}, want.NewTouched()); !slices.Equal(got, concerned) {
			t.Errorf("node-b gets %s: compiled %v, want %v", addr, got, concerned)
		}
		c.UpdateNodes(map[string]*model.Node{"node-b": nil}, want.NewTouched())
	}
	if got := c.SetAddresses([]netip.Addr{home.Addresses[1], home.Addresses[0], home.Addresses[0]}, want.NewTouched()); got != nil {
		t.Errorf("the same addresses in another order: compiled %d", len(got))
	}
}

// This node's pod ranges change the rules, and nothing that belongs to a Service. They stay if the node's object is deleted or loses its
// ranges.
func TestPodRangesChangeTheRulesOnly(t *testing.T) {
	cfg := compiletest.Config()
	cfg.LocalFromNode = true
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
		t.Error("the rules are not touched")
	}
	for _, node := range []*model.Node{nil, {}} {
		if tell(compiletest.Node, node).Rules {
			t.Errorf("node %v touches the rules", node)
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

// Node ports at the node's primary addresses stay open while its object is deleted or has no addresses, and follow it when it has others.
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
			t.Errorf("node %v: want %s, have %v", step.node, step.at, c.Want().Servers)
		}
	}
}

// Addresses that package watch should have rejected are rejected here too: a loopback VIP would cut a node off from itself.
func TestRefusedAddresses(t *testing.T) {
	for _, bad := range []string{
		"0.0.0.0", "127.0.0.1", "169.254.169.254", "224.0.0.1", "255.255.255.255", "::", "::1", "fe80::1", "ff02::1",
	} {
		addr := netip.MustParseAddr(bad)
		good, other := "10.96.0.1", "10.244.0.1"
		if addr.Is6() {
			good, other = "fd00::1", "fd00:10::1"
		}
		asEndpoint := compiletest.Service("web", good, bad, other)
		c := scratch(services{asEndpoint.ID: asEndpoint})
		for _, s := range c.Want().Servers {
			if len(s.Destinations) != 1 || s.Destinations[0].Addr.Addr().String() != other {
				t.Errorf("%s as an endpoint: %v", bad, s.Destinations)
			}
		}
		if ps := c.Problems(asEndpoint.ID); len(ps) != 1 || ps[0].Value != bad {
			t.Errorf("%s as an endpoint: problems %v", bad, ps)
		}
		asVIP := compiletest.Service("web", bad, other)
		c = scratch(services{asVIP.ID: asVIP})
		if ps := c.Problems(asVIP.ID); len(c.Want().Servers) > 0 || len(ps) != 1 || ps[0].Value != bad {
			t.Errorf("%s as a VIP: %v, problems %v", bad, c.Want().Servers, ps)
		}
	}
}

// A port that repeats an earlier one does not affect the earlier one. (Package watch rejects it.)
func TestRepeatedPort(t *testing.T) {
	svc := compiletest.Service("web", "10.96.0.1", "10.244.0.1")
	svc.Ports = append(svc.Ports, model.ServicePort{Name: "again", Protocol: inet.TCP, Port: 80})
	c := scratch(services{svc.ID: svc})
	key := kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: inet.TCP}
	if s := c.Want().Servers[key]; len(c.Want().Servers) != 1 || s.Owner.String() != "default/web:http" || len(s.Destinations) != 1 {
		t.Errorf("servers %v", c.Want().Servers)
	}
	c.Update(services{svc.ID: nil}, want.NewTouched())
	if len(c.Want().Servers) > 0 || len(addresses(c.Want())) > 0 {
		t.Errorf("left: %v", addresses(c.Want()))
	}
}

// Fragments are sorted by virtual server, and destinations by address.
func TestFragmentsAreSorted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := compiletest.Services(t, "services")
		c := scratchIn(all, compiletest.Around(t, "around"))
		for id := range all {
			fragment, problems := c.Fragment(id), c.Problems(id)
			if !slices.IsSortedFunc(fragment, func(a, b want.Server) int { return a.Key.Compare(b.Key) }) {
				t.Fatalf("servers: %v", fragment)
			}
			if !slices.IsSortedFunc(problems, model.Problem.Compare) {
				t.Fatalf("problems: %v", problems)
			}
			for _, s := range fragment {
				if !slices.IsSortedFunc(s.Destinations, kernel.Destination.Compare) {
					t.Fatalf("destinations: %v", s.Destinations)
				}
			}
		}
	})
}
