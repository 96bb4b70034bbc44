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

var home = compiletest.At("192.0.2.1", "fd00:2::1")

func scratch(all services) *compile.Cluster { return scratchIn(all, home) }

func scratchIn(all services, in compiletest.Surroundings) *compile.Cluster {
	return compiletest.Cluster(compiletest.Config(), all, in)
}

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

// I2: the wanted state depends only on the current Services, nodes and addresses, and on the frontends served at node addresses.
func TestResultIsIndependentOfHistory(t *testing.T) {
	sequences := 0
	defer func() { t.Attr("figure", fmt.Sprintf("%d sequences", sequences)) }()
	rapid.Check(t, func(t *rapid.T) {
		sequences++
		c := compile.NewCluster(compiletest.Config())
		c.SetListeners(nil, want.NewTouched())
		if rapid.Bool().Draw(t, "late") {
			c.CompileLate()
		}
		now, in := services{}, compiletest.At()
		for i := range rapid.IntRange(1, 5).Draw(t, "steps") {
			next, around := compiletest.Services(t, fmt.Sprint("step ", i)), in
			if rapid.Bool().Draw(t, "on another node") {
				around = compiletest.Around(t, fmt.Sprint("around ", i))
			}
			if svc := next[rapid.SampledFrom(allIDs()).Draw(t, "limited")]; svc != nil {
				svc.Balancing.MaxConnections = 7
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
			catchUp(c)
			now, in = next, around
			in.Left = compiletest.Claimed(c) // frontends stay served even if their address appears in a Node object
			if d := cmp.Diff(describe(scratchIn(now, in), allIDs()), describe(c, allIDs())); d != "" {
				t.Fatalf("-from scratch +after a history of changes:\n%s", d)
			}
			checkIndexes(t, c)
		}
	})
}

// checkIndexes compares what Cluster and want.State remember about the objects that need attention with all objects.
func checkIndexes(t *rapid.T, c *compile.Cluster) {
	unsettled, _, _ := c.Unsettled(true)
	if d := cmp.Diff(texts(c.UnsettledOfAll()), texts(unsettled)); d != "" {
		t.Fatalf("unsettled frontends (-of all Services +found):\n%s", d)
	}
	limited, stopped := map[kernel.ServerKey]*want.Server{}, map[kernel.ServerKey]*want.Server{}
	for key, server := range c.Want().Servers {
		for _, d := range server.Destinations {
			if d.Upper > 0 {
				limited[key] = server
			}
			if d.Weight == 0 {
				stopped[key] = server
			}
		}
	}
	if !maps.Equal(limited, c.Want().Limited()) || !maps.Equal(stopped, c.Want().Stopped()) {
		t.Fatalf("limited are %v, not %v; stopped are %v, not %v", limited, c.Want().Limited(), stopped, c.Want().Stopped())
	}
}

func texts[T any](list []T) []string {
	all := []string{}
	for _, item := range list {
		all = append(all, fmt.Sprint(item))
	}
	slices.Sort(all)
	return all
}

// inParts splits changes into random parts, and repeats some of them.
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

// Touched names every changed object, so a plan that compares only touched objects misses nothing.
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
				t.Fatalf("%s was %v, but is now %v", key, old.Servers[key], server)
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

// changed lists the elements that are in only one of two sequences.
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

func catchUp(c *compile.Cluster) (compiled []model.ServiceID) {
	for c.Behind() {
		compiled = append(compiled, c.Update(nil, want.NewTouched())...)
	}
	return compiled
}

// I12: Update compiles only the changed Services and the Services that they affect (see Cluster.update).
func TestOnlyAffectedServicesAreCompiled(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before, after := compiletest.Services(t, "before"), compiletest.Services(t, "after")
		c := scratch(before)
		id := rapid.SampledFrom(allIDs()).Draw(t, "changed")
		was, flipped := c.Claimants(), flippedBy(before, id, after[id])
		got := append(c.Update(services{id: after[id]}, want.NewTouched()), catchUp(c)...)
		slices.SortFunc(got, model.ServiceID.Compare)
		affected := map[model.ServiceID]bool{id: true}
		for key, claimants := range c.Claimants() {
			if len(was[key]) > 0 && claimants[0] != was[key][0] {
				for _, other := range claimants {
					affected[other.ID] = true
				}
			}
		}
		for other, svc := range before {
			if slices.ContainsFunc(endpointsOf(svc), func(a netip.Addr) bool { return flipped[a] }) {
				affected[other] = true
			}
		}
		if expect := slices.SortedFunc(maps.Keys(affected), model.ServiceID.Compare); !slices.Equal(got, expect) {
			t.Fatalf("compiled %v, want %v", got, expect)
		}
	})
}

// flippedBy lists the addresses that become virtual, or are no longer virtual, when one Service changes.
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

func tcpAt(addr string) kernel.ServerKey {
	return kernel.ServerKey{Addr: netip.MustParseAddrPort(addr), Protocol: inet.TCP}
}

func TestNothingRemainsAfterDeletion(t *testing.T) {
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
			t.Fatalf("%d claims and addresses remain", n)
		}
	})
}

// Compile also rejects addresses that package watch should already have rejected. For example, a loopback VIP would
// break the node's local traffic.
func TestRefusedAddresses(t *testing.T) {
	for _, bad := range []string{
		"0.0.0.0", "127.0.0.1", "169.254.169.254", "224.0.0.1", "255.255.255.255", "::", "::1", "fe80::1", "ff02::1", "fd00:ec2::254",
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
				t.Errorf("with endpoint %s, got destinations %v", bad, s.Destinations)
			}
		}
		if ps := c.Problems(asEndpoint.ID); len(ps) != 1 || ps[0].Value != bad {
			t.Errorf("with endpoint %s, got problems %v", bad, ps)
		}
		asVIP := compiletest.Service("web", bad, other)
		c = scratch(services{asVIP.ID: asVIP})
		if ps := c.Problems(asVIP.ID); len(c.Want().Servers) > 0 || len(ps) != 1 || ps[0].Value != bad {
			t.Errorf("with VIP %s, got virtual servers %v and problems %v", bad, c.Want().Servers, ps)
		}
	}
}

// Package watch rejects repeated ports. Package compile ignores them.
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
