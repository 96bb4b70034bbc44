package diff_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/diff/difftest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// I6 and I7: from any state of the kernel, one plan leads to the wanted state, through states that are safe for every packet.
func TestConvergesFromAnyState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		families := anyFamilies(t)
		fake, before := newFake(), anyWantOf(t, families, "before")
		if rapid.Bool().Draw(t, "ran before") {
			fake = start(t, before)
		}
		damage(t, fake, *before.Base())
		began := fake.Dump()

		w := anyWantOf(t, families, "wanted")
		p := converge(t, fake, w, read())
		for range w.Lingering() { // the server is in the ledger now, so the next plan removes it if it has no connections
			p = converge(t, fake, w, read())
			break
		}
		if again := plan(w, fake.State(), read()); again.Len() > 0 {
			t.Fatalf("I6: the second plan is not empty:\n%s\nfirst plan:\n%s\nstart:\n%s", text(again), text(p), began)
		}
		holds(t, w, fake.State(), began)
	})
}

// I7: the plan starts from the state that kube-proxy, or an agent that lost some of its rules and sets, left behind. At every step of the
// plan, packets to a port that stays served are accepted, and masqueraded on the way to the endpoint.
func TestTakeoverHasNoGap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := anyWant(t, "wanted")
		fake := start(t, w)
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "what is lost"), 0))
		dropRules(fake, *w.Base())
		for _, set := range w.Base().Sets {
			switch r.IntN(3) {
			case 0:
				check(fake.FlushSet(set.Name))
			case 1:
				check(fake.DestroySet(set.Name))
			}
		}
		for key := range w.Servers { // guards of an earlier agent
			for _, set := range w.Base().Sets {
				if set.Timing == want.Guard && r.IntN(3) == 0 {
					_ = fake.AddMember(kernel.Member{Set: set.Name, Element: want.LedgerEntry(w.Base().Ledger, key).Element})
				}
			}
		}
		converge(t, fake, w, read())
	})
}

// holds compares the kernel with the wanted state without using package diff.
func holds(t tester, w *diff.Target, have *kernel.State, began string) {
	t.Helper()
	for key, server := range w.Servers {
		observed, ok := have.Servers[key]
		if !ok || observed.Server != server.Server && observed.Server != server.Over(observed.Server) {
			t.Fatalf("%s: have %v, want %v\nstart:\n%s", key, observed, server.Server, began)
		}
		holdsDestinations(t, server.Destinations, observed)
	}
	for m := range w.Members {
		if !have.HasMember(m) {
			t.Fatalf("member %s is missing\nstart:\n%s", m, began)
		}
	}
	for _, set := range w.Base().Sets {
		for e := range have.Members[set.Name] {
			if !w.HasMember(kernel.Member{Set: set.Name, Element: e}) {
				t.Fatalf("stale member %s %s", set.Name, e)
			}
		}
	}
	for a := range w.Addresses {
		if binding, ok := have.Addresses[a]; !ok || binding != w.Base().BindingOf(a) {
			t.Fatalf("address %s: bound %t, binding %d, want %d", a, ok, binding, w.Base().BindingOf(a))
		}
	}
}

// holdsDestinations permits unwanted destinations only if they are draining.
func holdsDestinations(t tester, want []kernel.Destination, observed kernel.ObservedServer) {
	t.Helper()
	key := observed.Server.Key
	var live []kernel.Destination
	for _, d := range observed.Destinations {
		wanted := slices.ContainsFunc(want, func(w kernel.Destination) bool { return w.Addr == d.Addr })
		if d.Weight > 0 || wanted {
			live = append(live, d.Destination)
		} else if d.Stats.Connections() == 0 {
			t.Fatalf("%s: %s drains without a connection", key, d)
		}
	}
	if !slices.Equal(live, want) {
		t.Fatalf("%s: have %v, want %v", key, live, want)
	}
}

// I5: no plan changes a foreign object.
func TestForeignObjectsStay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before := anyWant(t, "before")
		fake := start(t, before)
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "others"), 0))
		theirs := addOthers(fake, before, r)

		w := anyWant(t, "wanted")
		converge(t, fake, w, read())
		have := fake.State()
		for key, server := range theirs.servers {
			if now, ok := have.Servers[key]; !ok || fmt.Sprint(now) != fmt.Sprint(server) {
				t.Fatalf("%s changed from %v to %v", key, server, now)
			}
			_, entered := have.Members[want.LedgerEntry(w.Base().Ledger, key).Set][want.LedgerEntry(w.Base().Ledger, key).Element]
			if entered {
				t.Fatalf("%s was claimed", key)
			}
			if w.Server(key) != nil {
				t.Fatalf("%s is not reported as foreign", key)
			}
		}
		for addr := range theirs.addresses {
			if _, ok := have.Addresses[addr]; !ok {
				t.Fatalf("address %s was removed", addr)
			}
		}
	})
}

type others struct {
	servers   map[kernel.ServerKey]kernel.ObservedServer
	addresses map[netip.Addr]struct{}
}

func addOthers(fake *kerneltest.Fake, ours *diff.Target, r *rand.Rand) others {
	theirs := others{map[kernel.ServerKey]kernel.ObservedServer{}, map[netip.Addr]struct{}{}}
	for range 1 + r.IntN(4) {
		key := anyKey(r)
		if ours.Server(key) != nil || theirs.servers[key].Server.Key == key {
			continue
		}
		d := kernel.Destination{Addr: netip.AddrPortFrom(foreignPod(key.Family()), 9), Weight: uint32(r.IntN(3))}
		check(fake.AddServer(serverAt(key), d))
		theirs.servers[key] = fake.State().Servers[key]
	}
	for range r.IntN(3) {
		addr := netip.AddrFrom4([4]byte{192, 168, 7, byte(r.IntN(9))})
		check(fake.AddAddress(kernel.BoundAddress{Addr: addr}))
		theirs.addresses[addr] = struct{}{}
	}
	return theirs
}

func foreignPod(f inet.Family) netip.Addr {
	if f == inet.IPv4 {
		return netip.MustParseAddr("192.168.9.9")
	}
	return netip.MustParseAddr("fd99::9")
}

func anyKey(r *rand.Rand) kernel.ServerKey {
	w := compiletest.Small
	ips := slices.Concat(w.ClusterIPs[inet.IPv4], w.ClusterIPs[inet.IPv6], w.External[inet.IPv4], w.External[inet.IPv6], w.Own)
	ports := slices.Concat(w.Ports, w.Ports, w.NodePorts)
	return kernel.ServerKey{
		Addr:     netip.AddrPortFrom(netip.MustParseAddr(ips[r.IntN(len(ips))]), ports[r.IntN(len(ports))]),
		Protocol: w.Protocols[r.IntN(len(w.Protocols))],
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func damage(t *rapid.T, fake *kerneltest.Fake, base want.Base) {
	r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "damage"), 0))
	n := rapid.IntRange(0, 12).Draw(t, "damages")
	// A set can be removed, or replaced by a set of another type, only while no rule refers to it.
	if r.IntN(4) == 0 {
		dropRules(fake, base)
	}
	for range n {
		damages[r.IntN(len(damages))](fake, base, r)
	}
}

func dropRules(fake *kerneltest.Fake, base want.Base) {
	for _, rules := range base.Rulesets {
		for _, j := range rules.Jumps {
			_ = fake.FlushChain(rules.Family, j.ChainID)
		}
		for _, c := range rules.Chains {
			_ = fake.FlushChain(rules.Family, c.ChainID)
		}
	}
}

// Each function damages the kernel state. It may fail, because its target may not exist.
var damages = []func(*kerneltest.Fake, want.Base, *rand.Rand){
	func(f *kerneltest.Fake, _ want.Base, r *rand.Rand) { _ = f.ClearServers() },
	func(f *kerneltest.Fake, _ want.Base, r *rand.Rand) { _ = f.DelServer(anyKey(r)) },
	func(f *kerneltest.Fake, _ want.Base, r *rand.Rand) { // ipvsadm -A, with destinations
		key := anyKey(r)
		s := serverAt(key)
		s.Scheduler = []string{"rr", "wrr", "mh"}[r.IntN(3)]
		if r.IntN(3) == 0 {
			s.Flags, s.Timeout = kernel.FlagPersistent, 60
		}
		_ = f.AddServer(s)
		addDestinations(f, key, r)
	},
	func(f *kerneltest.Fake, _ want.Base, r *rand.Rand) { addDestinations(f, anyServer(f, r), r) },
	func(f *kerneltest.Fake, base want.Base, r *rand.Rand) { // an entry without a virtual server, or for a foreign virtual server
		_ = f.AddMember(want.LedgerEntry(base.Ledger, anyKey(r)))
	},
	func(f *kerneltest.Fake, base want.Base, r *rand.Rand) {
		_ = f.DelMember(want.LedgerEntry(base.Ledger, anyKey(r)))
	},
	func(f *kerneltest.Fake, base want.Base, r *rand.Rand) {
		_ = f.DelMember(want.Seal(base.Ledger, inet.Families[r.IntN(2)]))
	},
	func(f *kerneltest.Fake, base want.Base, r *rand.Rand) { _ = f.FlushSet(anySet(base, r).Name) },
	func(f *kerneltest.Fake, base want.Base, r *rand.Rand) { // an unwanted entry in any set of ports
		if set := anySet(base, r); set.Type == kernel.HashIPPort && set.Name != base.Ledger[set.Family] {
			_ = f.AddMember(kernel.Member{Set: set.Name, Element: want.LedgerEntry(base.Ledger, anyKey(r)).Element})
		}
	},
	func(f *kerneltest.Fake, _ want.Base, _ *rand.Rand) {
		_ = f.SetTimeouts(kernel.Timeouts{TCP: time.Minute, TCPFin: time.Minute, UDP: time.Minute})
	},
	func(f *kerneltest.Fake, base want.Base, r *rand.Rand) { _ = f.DestroySet(anySet(base, r).Name) },
	func(f *kerneltest.Fake, base want.Base, r *rand.Rand) { // a set of another type or size
		s := anySet(base, r).Set
		if f.DestroySet(s.Name) != nil {
			return
		}
		s.MaxElem = 7
		s.Type = []kernel.SetType{kernel.HashIP, kernel.HashIPPort, kernel.HashIPPortIP}[r.IntN(3)]
		_ = f.CreateSet(s)
	},
	func(f *kerneltest.Fake, base want.Base, r *rand.Rand) { // an unknown set with our prefix
		_ = f.CreateSet(kernel.Set{Name: compile.SetPrefix + "OLD", Type: kernel.HashIP, Family: inet.IPv4, MaxElem: 9})
	},
	func(f *kerneltest.Fake, base want.Base, r *rand.Rand) { // members of an earlier agent
		key := anyKey(r)
		for _, set := range base.Sets {
			_ = f.AddMember(kernel.Member{Set: set.Name, Element: kernel.Element{Addr: key.Addr.Addr()}})
			_ = f.AddMember(kernel.Member{Set: set.Name, Element: kernel.Element{
				Addr: key.Addr.Addr(), Protocol: key.Protocol, Port: key.Addr.Port(),
			}})
		}
	},
	func(f *kerneltest.Fake, _ want.Base, r *rand.Rand) {
		_ = f.AddAddress(kernel.BoundAddress{Addr: anyKey(r).Addr.Addr(), Binding: kernel.Binding(r.IntN(2))})
	},
	func(f *kerneltest.Fake, _ want.Base, r *rand.Rand) {
		_ = f.DelAddress(kernel.BoundAddress{Addr: anyKey(r).Addr.Addr(), Binding: kernel.Binding(r.IntN(2))})
	},
	func(f *kerneltest.Fake, _ want.Base, r *rand.Rand) { _ = f.DelDevice() },
	func(f *kerneltest.Fake, _ want.Base, r *rand.Rand) {
		_ = f.SetSysctl(kernel.SysctlSetting{Name: "net/ipv4/ip_forward", Value: "0"})
	},
	func(f *kerneltest.Fake, _ want.Base, r *rand.Rand) {
		_ = f.FlushChain(inet.Families[r.IntN(2)], compile.Chains[r.IntN(len(compile.Chains))])
	},
	func(f *kerneltest.Fake, _ want.Base, r *rand.Rand) {
		_ = f.AppendRule(inet.Families[r.IntN(2)], compile.Chains[r.IntN(len(compile.Chains))], "-j", "ACCEPT")
	},
	func(f *kerneltest.Fake, base want.Base, r *rand.Rand) {
		rules := base.Rulesets[r.IntN(len(base.Rulesets))]
		_ = f.FlushChain(rules.Family, rules.Jumps[r.IntN(len(rules.Jumps))].ChainID)
	},
}

func addDestinations(f *kerneltest.Fake, key kernel.ServerKey, r *rand.Rand) {
	pods := compiletest.Small.Pods[inet.IPv4]
	if key.Addr.IsValid() && key.Family() == inet.IPv6 {
		pods = compiletest.Small.Pods[inet.IPv6]
	}
	for range 1 + r.IntN(3) {
		addr := netip.AddrPortFrom(netip.MustParseAddr(pods[r.IntN(len(pods))]), uint16(8080+r.IntN(3)))
		d := kernel.ServerDestination{Server: key, Destination: kernel.Destination{Addr: addr, Weight: uint32(r.IntN(3))}}
		if f.AddDestination(d) != nil {
			continue
		}
		if r.IntN(2) == 0 {
			f.SetConnections(key, addr, uint32(r.IntN(2)), uint32(r.IntN(2)))
		}
		if r.IntN(4) == 0 {
			_ = f.SetForwarding(d, kernel.ForwardRoute)
		}
	}
}

func anyServer(f *kerneltest.Fake, r *rand.Rand) kernel.ServerKey {
	keys := slices.SortedFunc(maps.Keys(f.State().Servers), kernel.ServerKey.Compare)
	if len(keys) == 0 {
		return kernel.ServerKey{}
	}
	return keys[r.IntN(len(keys))]
}

func anySet(base want.Base, r *rand.Rand) want.Set { return base.Sets[r.IntN(len(base.Sets))] }

// While no other program writes, an incremental sync finds the same differences as a full sync.
func TestTouchedIsEnough(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		from, next := compiletest.Services(t, "from"), compiletest.Services(t, "to")
		before, after := compiletest.Around(t, "around from"), compiletest.Around(t, "around to")
		c := compiletest.Cluster(compiletest.Config(), from, before)
		fake := start(t, diff.NewTarget(c.Want()))
		have := fake.State()
		touched := want.NewTouched()
		facts := compile.Facts{Services: compiletest.Between(from, next)}
		if rapid.Bool().Draw(t, "moves") {
			facts.Addresses, facts.Nodes = append([]netip.Addr{}, after.Addresses...), compiletest.NodesBetween(before.Nodes, after.Nodes)
		}
		c.Apply(facts, touched)
		p := touchedPlan(diff.NewTarget(c.Want()), have, touched)
		apply(t, fake, diff.NewTarget(c.Want()), p)

		rest := plan(diff.NewTarget(c.Want()), fake.State(), diff.Options{})
		if rest.Len() > 0 {
			t.Fatalf("a full sync still plans:\n%safter the incremental sync:\n%s", text(rest), text(p))
		}
		for op := range p.All {
			have.Advance(op)
		}
		if d := kerneltest.Diff(fake.State(), have); d != "" {
			t.Fatalf("the remembered state differs from the kernel (-kernel +remembered):\n%s", d)
		}
	})
}

// I7 and I8 together: even if operations fail, with or without effect, packets that should be dropped are dropped, and no packet reaches a
// half-written Service. Failed operations are retried until the kernel reaches the wanted state.
func TestFailuresKeepTheOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fake := start(t, anyWant(t, "before"))
		w := anyWant(t, "wanted")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "faults"), 0))
		checker := difftest.New(*w.Base()).Wanting(w)
		allowed := checker.Violations(fake.State())
		for attempt := range 6 {
			fails := func() bool { return attempt < 5 && r.IntN(8) == 0 }
			allowed = append(allowed, tryAll(t, fake, w, checker, allowed, fails, r)...)
		}
		if rest := plan(w, fake.State(), read()); rest.Len() > 0 {
			t.Fatalf("the wanted state was never reached; remaining plan:\n%s", text(rest))
		}
	})
}

// tryAll tries every operation of a plan. It returns the violations that are acceptable because an operation failed.
func tryAll(
	t *rapid.T, fake *kerneltest.Fake, w *diff.Target, checker *difftest.Checker, allowed []string, fails func() bool, r *rand.Rand,
) []string {
	have := fake.State()
	p := plan(w, have, read())
	failures := diff.NewFailures(w, have)
	var blamed []string
	for op := range p.All {
		if err := failures.Blocks(op); err != nil {
			failures.Add(op, err)
			continue
		}
		if fails() {
			if r.IntN(2) == 0 { // the reply is lost
				_ = fake.Apply(context.Background(), []kernel.Op{op})
			}
			failures.Add(op, errTest)
			if m, ok := op.Object.(kernel.Member); ok {
				blamed = append(blamed, difftest.KeptOut(m))
			}
			continue
		}
		if err := fake.Apply(context.Background(), []kernel.Op{op})[0]; err != nil {
			t.Fatalf("the kernel refused %s: %v\nplan:\n%s", op, err, text(p))
		}
		have.Advance(op)
		state := fake.State()
		if wrong := checker.Step(op, state); wrong != "" {
			t.Fatalf("%s: %s\nplan:\n%s", op, wrong, text(p))
		}
		for _, v := range checker.Violations(state) {
			if !slices.Contains(allowed, v) && !slices.Contains(blamed, v) {
				t.Fatalf("after %s: %s\nplan:\n%s", op, v, text(p))
			}
		}
	}
	return blamed
}

// I2: equal states give equal plans, regardless of the order of their maps.
func TestSameInputSamePlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before := anyWant(t, "before")
		fake := start(t, before)
		damage(t, fake, *before.Base())
		services, around := compiletest.Services(t, "wanted"), compiletest.Around(t, "around wanted")
		var plans []string
		for range 3 {
			// Build both states again, because the order of their maps varies.
			plans = append(plans, text(plan(diff.NewTarget(compiletest.Cluster(compiletest.Config(), services, around).Want()), fake.State(), read())))
		}
		if plans[0] != plans[1] || plans[0] != plans[2] {
			t.Fatalf("equal input gives different plans:\n%s", strings.Join(plans, "\n---\n"))
		}
	})
}

func TestNothingToDo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := anyWant(t, "services")
		fake := start(t, w)
		if p := plan(w, fake.State(), diff.Options{}); p.Len() > 0 {
			t.Fatalf("the kernel has the wanted state, but the plan is not empty:\n%s", text(p))
		}
	})
}
