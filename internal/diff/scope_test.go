package diff_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

const (
	ledger4 = "KIPVS-4-LEDGER"
	vip4    = "KIPVS-4-VIP"
)

var (
	asWanted     = []kernel.Destination{to("10.244.0.1:8080", 1), to("10.244.0.2:8080", 1)}
	partOfWanted = asWanted[:1]
	leaving      = []kernel.Destination{to("10.244.0.1:8080", 1), to("10.244.9.9:8080", 0)}
	foreign      = []kernel.Destination{to("10.244.0.1:8080", 1), to("192.168.1.1:9", 1)}
)

// scopeTest describes the virtual server 10.96.0.1:80, and the evidence of which program created it.
type scopeTest struct {
	name         string
	unwanted     bool // no Service wants it
	bound        bool // its address is on kube-ipvs0
	recorded     bool // the ledger contains it
	lost         bool // the ledger does not contain the seal
	before       bool // kube-ipvs0 has another address
	known        bool // this agent has served it
	contested    bool
	destinations []kernel.Destination
	want         string // ours, foreign, leftover, deleted, ignored
}

var scopeTests = []scopeTest{
	{name: "recorded", recorded: true, destinations: foreign, want: "ours"},
	{name: "recorded, without destinations", recorded: true, want: "ours"},
	{name: "not recorded", destinations: foreign, want: "foreign"},
	{name: "not recorded, equal to the wanted one", destinations: asWanted, want: "foreign"},
	{name: "not recorded, on our device", bound: true, destinations: foreign, want: "foreign"},
	{name: "not recorded, on our device, without destinations", bound: true, want: "foreign"},
	{name: "not recorded, on our device, equal to the wanted one", bound: true, destinations: asWanted, want: "ours"},
	{name: "not recorded, on our device, with some of the wanted endpoints", bound: true, destinations: partOfWanted, want: "ours"},
	{name: "ledger lost", lost: true, destinations: foreign, want: "foreign"},
	{name: "ledger lost, without destinations", lost: true, want: "foreign"},
	{name: "ledger lost, its destinations are all our endpoints", lost: true, destinations: partOfWanted, want: "ours"},
	{name: "ledger lost, on our device (kube-proxy's)", lost: true, bound: true, destinations: foreign, want: "ours"},
	{name: "ledger lost, on our device, without destinations", lost: true, bound: true, want: "ours"},
	{name: "kube-proxy's node port without endpoints", lost: true, before: true, want: "ours"},
	{name: "kube-proxy's node port, its last endpoint leaving", lost: true, before: true, destinations: leaving, want: "ours"},
	{name: "kube-proxy ran here, but the destinations are not endpoints", lost: true, before: true, destinations: foreign, want: "foreign"},
	{name: "not recorded, without destinations, other addresses on our device", before: true, want: "foreign"},
	{name: "ledger lost while running", lost: true, known: true, destinations: foreign, want: "ours"},
	{name: "entry lost while running", known: true, destinations: foreign, want: "ours"},
	{name: "contested", recorded: true, contested: true, destinations: foreign, want: "foreign"},
	{name: "contested, on our device, equal to the wanted one", recorded: true, bound: true, contested: true, destinations: asWanted, want: "foreign"},
	{name: "unwanted, recorded", unwanted: true, recorded: true, destinations: asWanted, want: "deleted"},
	{name: "unwanted, entry lost while running", unwanted: true, known: true, destinations: asWanted, want: "deleted"},
	{name: "unwanted, ledger lost, on our device", unwanted: true, lost: true, bound: true, destinations: asWanted, want: "leftover"},
	{name: "unwanted, on our device", unwanted: true, bound: true, destinations: asWanted, want: "leftover"},
	{name: "unwanted, its address not on our device", unwanted: true, destinations: asWanted, want: "ignored"},
	{name: "unwanted, contested", unwanted: true, recorded: true, contested: true, destinations: asWanted, want: "ignored"},
}

// I5: the evidence decides whether a virtual server is ours. The wanted virtual server is always 10.96.0.1:80 with endpoints .1 and .2.
func TestScope(t *testing.T) {
	key := tcp("10.96.0.1:80")
	web := compiletest.Service("web", "10.96.0.1", "10.244.0.1", "10.244.0.2")
	entry := kernel.Member{Set: ledger4, Element: kernel.Element{Addr: key.Addr.Addr(), Protocol: key.Protocol, Port: 80}}
	for _, test := range scopeTests {
		t.Run(test.name, func(t *testing.T) {
			opt := read()
			opt.Known = func(k kernel.ServerKey) bool { return test.known && k == key }
			opt.Contested = func(k kernel.ServerKey) bool { return test.contested && k == key }
			w := diff.NewTarget(clusterOf(web).Want())
			if test.unwanted {
				w = diff.NewTarget(clusterOf().Want())
			}
			have := test.kernel(t, key, entry)
			p := plan(w, have, opt)
			if got := fate(w, have, p, key, opt); got != test.want {
				t.Errorf("%s, want %s; plan:\n%s", got, test.want, text(p))
			}
			if touches(p, key) != (test.want == "ours" || test.want == "deleted") {
				t.Errorf("%s; plan:\n%s", test.want, text(p))
			}
			if test.contested && !slices.Contains(commands(p), "ipset del "+entry.String()) {
				t.Errorf("our entry is not removed; plan:\n%s", text(p))
			}
		})
	}
}

func (test scopeTest) kernel(t *testing.T, key kernel.ServerKey, entry kernel.Member) *kernel.State {
	t.Helper()
	fake := newFake()
	converge(t, fake, diff.NewTarget(clusterOf().Want()), read())
	must(t, fake.AddServer(serverAt(key), test.destinations...))
	if test.bound {
		must(t, fake.AddAddress(kernel.BoundAddress{Addr: key.Addr.Addr()}))
	}
	if test.before {
		must(t, fake.AddAddress(kernel.BoundAddress{Addr: netip.MustParseAddr("10.96.0.99")}))
	}
	if test.recorded {
		must(t, fake.AddMember(entry))
	}
	if test.lost {
		must(t, fake.FlushSet(ledger4))
	}
	return fake.State()
}

func fate(w *diff.Target, have *kernel.State, p diff.Plan, key kernel.ServerKey, opt diff.Options) string {
	switch {
	case slices.Contains(commands(p), "ipvsadm -D "+key.String()):
		return "deleted"
	case w.Foreign()[key] != nil:
		return "foreign"
	case w.Server(key) != nil:
		return "ours"
	case slices.Contains(diff.AllLeftovers(w, have, opt).Servers, key):
		return "leftover"
	}
	return "ignored"
}

func touches(p diff.Plan, key kernel.ServerKey) bool {
	return p.Has(func(op kernel.Op) bool {
		_, isMember := op.Object.(kernel.Member)
		takesBack := isMember && op.Verb == kernel.Delete
		return !takesBack && strings.Contains(op.String(), key.Addr.Addr().String())
	})
}

// An address on kube-ipvs0 is ours if it is in the ledger or in the set of virtual addresses.
func TestAddressScope(t *testing.T) {
	for _, test := range []struct {
		name    string
		member  kernel.Member
		routed  bool
		want    []string
		leftOne bool
	}{
		{name: "in neither", want: []string{}, leftOne: true},
		{
			name: "in neither, with a route", routed: true, leftOne: true,
			want: []string{"ip route del local 10.96.0.9/32 dev kube-ipvs0 table local proto 117"},
		},
		{
			name: "in the set of virtual addresses", member: member(vip4, "10.96.0.9"),
			want: []string{"ip addr del 10.96.0.9/32 dev kube-ipvs0", "ipset del KIPVS-4-VIP 10.96.0.9"},
		},
		{
			name: "in the ledger", member: kernel.Member{Set: ledger4, Element: kernel.Element{
				Addr: tcp("10.96.0.9:1").Addr.Addr(), Protocol: 6, Port: 80,
			}},
			want: []string{"ip addr del 10.96.0.9/32 dev kube-ipvs0", "ipset del KIPVS-4-LEDGER 10.96.0.9,tcp:80"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			fake := newFake()
			w := diff.NewTarget(clusterOf().Want())
			converge(t, fake, w, read())
			must(t, fake.AddAddress(bound("10.96.0.9")))
			if test.routed {
				must(t, fake.AddAddress(kernel.BoundAddress{Addr: bound("10.96.0.9").Addr, Binding: kernel.Routed}))
			}
			if test.member.Set != "" {
				must(t, fake.AddMember(test.member))
			}
			p := plan(w, fake.State(), read())
			if d := cmp.Diff(test.want, commands(p)); d != "" {
				t.Error(d)
			}
			if left := diff.AllLeftovers(w, fake.State(), read()).Addresses; (len(left) == 1) != test.leftOne {
				t.Errorf("got leftovers %v", left)
			}
			for op := range diff.Removal(w, fake.State()).All {
				if _, is := op.Object.(kernel.DummyDevice); is && test.leftOne {
					t.Error("a cleanup removes the device of a foreign address")
				}
			}
		})
	}
}

// If nftables does the load balancing, only the agent uses kube-ipvs0. If the ledger is lost, all addresses on kube-ipvs0 are ours.
func TestAddressesAfterAFlush(t *testing.T) {
	cfg := config4()
	cfg.Mode = kernel.NFTablesOnly
	w := diff.NewTarget(compiletest.Cluster(cfg, nil, compiletest.At("192.0.2.1")).Want())
	fake := start(t, diff.NewTarget(clusterOf().Want()))
	must(t, fake.AddAddress(bound("10.96.0.9")))
	if left := diff.AllLeftovers(w, fake.State(), read()).Addresses; len(left) != 1 {
		t.Errorf("leftovers = %v, want 1 address while the ledger exists", left)
	}
	must(t, fake.FlushSet(ledger4))
	if p := plan(w, fake.State(), read()); !slices.Contains(commands(p), "ip addr del 10.96.0.9/32 dev kube-ipvs0") {
		t.Errorf("without a ledger, the plan does not remove the address:\n%s", text(p))
	}
}

func member(set, addr string) kernel.Member {
	return kernel.Member{Set: set, Element: kernel.Element{Addr: bound(addr).Addr}}
}

// While a foreign virtual server has the key of one of ours, nothing that depends on our virtual server is wanted. Once the foreign virtual
// server is deleted, ours is wanted again.
func TestForeignServerComesAndGoes(t *testing.T) {
	fake := newFake()
	key := tcp("10.96.0.1:80")
	w := diff.NewTarget(clusterOf(compiletest.Service("web", "10.96.0.1", "10.244.0.1")).Want())
	must(t, fake.AddServer(serverAt(key), to("192.168.1.1:80", 1)))
	converge(t, fake, w, read())
	dump := fake.Dump()
	if w.Foreign()[key] == nil || strings.Contains(dump, "ip addr") || strings.Contains(dump, "ipset add KIPVS-4-VIP") ||
		strings.Contains(dump, "10.244.0.1") || strings.Contains(dump, "LEDGER 10.96") {
		t.Fatalf("the foreign virtual server was not respected: foreign %v, kernel:\n%s", w.Foreign(), dump)
	}
	must(t, fake.DelServer(key))
	converge(t, fake, w, read())
	if w.Foreign()[key] != nil || !strings.Contains(fake.Dump(), "-r 10.244.0.1:8080") {
		t.Fatalf("the Service is still not served:\n%s", fake.Dump())
	}
}

// The ledger is sealed after its last entry: an agent that is killed while it adopts kube-proxy's virtual servers must be able to continue.
func TestSealComesLast(t *testing.T) {
	fake := newFake()
	w := diff.NewTarget(clusterOf(
		compiletest.Service("a", "10.96.0.1", "10.244.0.1"), compiletest.Service("b", "192.96.0.2", "10.244.0.1"),
	).Want())
	p := plan(w, fake.State(), read())
	list := commands(p)
	seal := slices.Index(list, "ipset add "+ledger4+" 127.0.0.1,tcp:1")
	entries := 0
	for i, c := range list {
		if strings.HasPrefix(c, "ipset add "+ledger4+" ") && i < seal {
			entries++
		}
		if strings.HasPrefix(c, "ipvsadm -A") && i < seal {
			t.Errorf("%s comes before the seal", c)
		}
	}
	if seal < 0 || entries != 2 {
		t.Errorf("%d entries before the seal:\n%s", entries, text(p))
	}
	failed := diff.NewFailures(w, fake.State())
	failed.Add(kernel.Op{Verb: kernel.Create, Object: want.LedgerEntry(w.Base().Ledger, tcp("10.96.0.1:80"))}, errTest)
	if failed.Blocks(opNamed(t, p, list[seal])) == nil {
		t.Error("sealed although an entry is missing")
	}
}

// A foreign virtual server at the seal's address does not become ours.
func TestSealIsNoServer(t *testing.T) {
	fake := newFake()
	w := diff.NewTarget(clusterOf().Want())
	converge(t, fake, w, read())
	must(t, fake.AddServer(serverAt(tcp("127.0.0.1:1")), to("10.244.0.1:1", 1)))
	if p := plan(w, fake.State(), read()); p.Len() > 0 {
		t.Errorf("plan:\n%s", text(p))
	}
}

// An incremental sync deletes only recorded virtual servers: a touched key does not make a virtual server ours.
func TestTouchedLeavesForeignObjects(t *testing.T) {
	fake := newFake()
	w := diff.NewTarget(clusterOf().Want())
	converge(t, fake, w, read())
	key := tcp("10.96.0.1:80")
	must(t, fake.AddServer(serverAt(key), to("192.168.1.1:80", 1)))
	must(t, fake.AddAddress(bound("10.96.0.1")))
	have := fake.State()

	c := clusterOf()
	target, touched := diff.NewTarget(c.Want()), want.NewTouched()
	web := compiletest.Service("web", "10.96.0.1", "10.244.0.1")
	c.Update(map[model.ServiceID]*model.Service{web.ID: web}, touched)
	if p := touchedPlan(target, have, touched); p.Len() > 0 || target.Foreign()[key] == nil {
		t.Errorf("foreign %v, want an empty plan, got:\n%s", target.Foreign(), text(p))
	}
	c.Update(map[model.ServiceID]*model.Service{web.ID: nil}, touched)
	if p := touchedPlan(target, have, touched); p.Len() > 0 || len(target.Foreign()) > 0 {
		t.Errorf("after the Service is deleted: foreign %v, want an empty plan, got:\n%s", target.Foreign(), text(p))
	}
}

// A virtual server that we are about to create, or that is missing from a full read, must be looked up before anything is written.
func TestUnclear(t *testing.T) {
	fake := newFake()
	w := diff.NewTarget(clusterOf(compiletest.Service("web", "10.96.0.1", "10.244.0.1"), compiletest.Service("new", "10.96.0.2")).Want())
	old, fresh := tcp("10.96.0.1:80"), tcp("10.96.0.2:80")
	converge(t, fake, diff.NewTarget(clusterOf(compiletest.Service("web", "10.96.0.1", "10.244.0.1")).Want()), read())
	unclear := func(listed bool) []kernel.ServerKey {
		touched := want.NewTouched()
		for _, key := range w.Keys() {
			touched.Servers[key] = struct{}{}
		}
		nothing := func(kernel.ServerKey) bool { return false }
		return diff.Decide(w, fake.State(), diff.Scope{All: listed, Listed: listed, Touched: touched, LookedUp: nothing}, read()).Unclear
	}
	if got := unclear(false); !slices.Equal(got, []kernel.ServerKey{fresh}) {
		t.Errorf("an incremental sync has unclear virtual servers %v", got)
	}
	if got := unclear(true); len(got) > 0 {
		t.Errorf("a full sync has unclear virtual servers %v", got)
	}
	must(t, fake.DelServer(old))
	if got := unclear(false); !slices.Equal(got, []kernel.ServerKey{old, fresh}) {
		t.Errorf("the old virtual server is deleted: an incremental sync has unclear virtual servers %v", got)
	}
	if got := unclear(true); !slices.Equal(got, []kernel.ServerKey{old}) {
		t.Errorf("the old virtual server is deleted: a full sync has unclear virtual servers %v", got)
	}
	must(t, fake.AddServer(serverAt(fresh), to("192.168.1.1:80", 1)))
	plan(w, fake.State(), read()) // the new virtual server is foreign
	must(t, fake.DelServer(fresh))
	if got := unclear(true); !slices.Equal(got, []kernel.ServerKey{old, fresh}) {
		t.Errorf("the foreign virtual server is deleted: a full sync has unclear virtual servers %v", got)
	}
}

func opNamed(t *testing.T, p diff.Plan, command string) kernel.Op {
	t.Helper()
	for op := range p.All {
		if op.String() == command {
			return op
		}
	}
	t.Fatalf("no %q in\n%s", command, text(p))
	return kernel.Op{}
}

// The node gets an address that is also on kube-ipvs0. It does not matter which program added it there. A node address with a served port
// must not be on kube-ipvs0: the plan that creates the virtual server also removes the address.
func TestOwnAddressLeavesTheDevice(t *testing.T) {
	svc := compiletest.Service("web", "10.96.0.1", "10.244.0.1")
	svc.Ports[0].NodePort = 30080
	w := diff.NewTarget(compiletest.Cluster(config4(), map[model.ServiceID]*model.Service{svc.ID: svc}, compiletest.At("192.0.2.1")).Want())
	fake := start(t, diff.NewTarget(clusterOf().Want()))
	must(t, fake.AddAddress(bound("192.0.2.1")))
	must(t, fake.AddAddress(bound("192.0.2.9")))
	if l := diff.AllLeftovers(w, fake.State(), read()); len(l.Addresses) != 1 || l.Addresses[0].String() != "192.0.2.9" {
		t.Errorf("got leftovers %v, want only 192.0.2.9", l.Addresses)
	}
	p := converge(t, fake, w, read())
	if !slices.Contains(commands(p), "ip addr del 192.0.2.1/32 dev kube-ipvs0") {
		t.Errorf("plan:\n%s", text(p))
	}
	if again := plan(w, fake.State(), read()); again.Len() > 0 {
		t.Errorf("a second comparison finds\n%s", text(again))
	}
}
