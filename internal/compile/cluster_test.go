package compile_test

import (
	"fmt"
	"maps"
	"net/netip"
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

func scratch(all services) *compile.Cluster {
	c := compile.NewCluster(compiletest.Config())
	c.Update(all, want.NewTouched())
	return c
}

// describe is everything a cluster says, as text.
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

// I2: what is wanted depends on the Services that there are, not on how they came to be.
func TestHistoryDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := compile.NewCluster(compiletest.Config())
		now := services{}
		for i := range rapid.IntRange(1, 5).Draw(t, "steps") {
			next := compiletest.Services(t, fmt.Sprint("step ", i))
			changes := compiletest.Between(now, next)
			order := rapid.Permutation(slices.SortedFunc(maps.Keys(changes), model.ServiceID.Compare)).Draw(t, "order")
			// In one go, or in parts, some of them twice.
			for len(order) > 0 {
				n := rapid.IntRange(1, len(order)).Draw(t, "part")
				part := services{}
				for _, id := range order[:n] {
					part[id] = changes[id]
				}
				for range rapid.IntRange(1, 2).Draw(t, "times") {
					c.Update(part, want.NewTouched())
				}
				order = order[n:]
			}
			now = next
			if d := cmp.Diff(describe(scratch(now), allIDs()), describe(c, allIDs())); d != "" {
				t.Fatalf("-from scratch +by way of history:\n%s", d)
			}
		}
	})
}

// I12: the Services compiled are those that changed and those that claim what these claim or claimed, and no other.
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
		got := c.Update(change, want.NewTouched())
		expect := slices.SortedFunc(maps.Keys(want1), model.ServiceID.Compare)
		if !slices.Equal(got, expect) {
			t.Fatalf("compiled %v, want %v", got, expect)
		}
	})
}

func claimedBy(svc *model.Service) map[string]bool {
	keys := map[string]bool{}
	if svc == nil {
		return keys
	}
	for _, ip := range svc.ClusterIPs {
		for _, p := range svc.Ports {
			keys[fmt.Sprint(ip, p.Port, p.Protocol)] = true
		}
	}
	return keys
}

// A claim passes to the next in line when the first gives it up, and back.
func TestClaimsChangeHands(t *testing.T) {
	older := compiletest.Service("older", "10.96.0.1", "10.244.0.1")
	younger := compiletest.Service("younger", "10.96.0.1", "10.244.0.2")
	younger.Created = older.Created.Add(1)
	c := scratch(services{older.ID: older, younger.ID: younger})
	key := kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: inet.TCP}
	owner := func(want string, problemsOf ...model.ServiceID) {
		t.Helper()
		if got := c.Want().Servers[key].Owner; got != want {
			t.Errorf("%s has it, want %s", got, want)
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

// Counting members and addresses ends at nothing.
func TestNothingIsLeft(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := scratch(compiletest.Services(t, "services"))
		gone := services{}
		for _, id := range allIDs() {
			gone[id] = nil
		}
		c.Update(gone, want.NewTouched())
		if d := cmp.Diff(describe(scratch(nil), nil), describe(c, allIDs())); d != "" {
			t.Fatalf("-empty +emptied:\n%s", d)
		}
	})
}

// A change of one Service among many costs that Service.
func TestOneOfMany(t *testing.T) {
	many := compiletest.Many(10_000, 1)
	c := scratch(many)
	id := model.ServiceID{Namespace: "default", Name: "svc-05000"}
	touched := want.NewTouched()
	got := c.Update(services{id: compiletest.WithEndpoint(many[id], compiletest.Ready(compiletest.Pod(1<<20)))}, touched)
	if !slices.Equal(got, []model.ServiceID{id}) || len(touched.Servers) != 1 {
		t.Errorf("compiled %v, touched %v", got, touched.Servers)
	}
}

func TestLocalCIDRsChangeTheRulesOnly(t *testing.T) {
	c := scratch(services{})
	touched := want.NewTouched()
	c.SetLocalCIDRs([]netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}, touched)
	if !touched.Rules || len(touched.Servers)+len(touched.Members)+len(touched.Addresses) > 0 {
		t.Errorf("touched %+v", touched)
	}
	var b strings.Builder
	inspect.Base(&b, c.Want().Base)
	if !strings.Contains(b.String(), "-s 10.1.0.0/24 -j ACCEPT") || strings.Contains(b.String(), "10.244.0.0/16") {
		t.Errorf("base:\n%s", b.String())
	}
}

// Addresses that the sources let through by mistake are refused here: a loopback VIP would cut a node off from itself.
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

func TestRepeatedPort(t *testing.T) {
	svc := compiletest.Service("web", "10.96.0.1", "10.244.0.1")
	svc.Ports = append(svc.Ports, model.ServicePort{Name: "again", Protocol: inet.TCP, Port: 80})
	c := scratch(services{svc.ID: svc})
	key := kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: inet.TCP}
	if s := c.Want().Servers[key]; len(c.Want().Servers) != 1 || s.Owner != "default/web:http" || len(s.Destinations) != 1 {
		t.Errorf("servers %v", c.Want().Servers)
	}
	if ps := c.Problems(svc.ID); len(ps) != 1 || ps[0].Field != "spec.ports[1].port" {
		t.Errorf("problems %v", ps)
	}
	c.Update(services{svc.ID: nil}, want.NewTouched())
	if len(c.Want().Servers) > 0 || len(addresses(c.Want())) > 0 {
		t.Errorf("left: %v", addresses(c.Want()))
	}
}

// What a Service asks for is in the order of its virtual servers, and their destinations are in the order of their addresses.
func TestFragmentsAreSorted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		for id, svc := range compiletest.Services(t, "services") {
			fragment, problems := compile.Service(svc, compiletest.Config(), func(kernel.ServerKey) model.ServiceID { return id })
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
