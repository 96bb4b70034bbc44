package known

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

var (
	base    = want.Base{Ledger: map[inet.Family]string{inet.IPv4: "LEDGER"}}
	web     = kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: inet.TCP}
	other   = kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.2:80"), Protocol: inet.TCP}
	sibling = kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.1:443"), Protocol: inet.TCP}
)

func holding(servers []kernel.ServerKey, entries ...kernel.ServerKey) *kernel.State {
	state := &kernel.State{
		Servers:   map[kernel.ServerKey]kernel.ObservedServer{},
		Members:   map[string]map[kernel.Element]struct{}{"LEDGER": {}},
		Addresses: map[netip.Addr]kernel.Binding{},
		Sysctls:   map[string]string{},
	}
	for _, key := range servers {
		state.Servers[key] = kernel.ObservedServer{Server: kernel.Server{Key: key}}
	}
	for _, key := range entries {
		state.Members["LEDGER"][want.LedgerEntry(base.Ledger, key).Element] = struct{}{}
	}
	return state
}

func add(o kernel.Object) kernel.Op { return kernel.Op{Verb: kernel.Create, Object: o} }

func create(key kernel.ServerKey) kernel.Op { return add(kernel.Server{Key: key}) }

func reading(state *kernel.State) *Kernel {
	k := New(kernel.IPVSWithIPTables)
	k.Replace(state)
	k.BeginPlan(diff.NewTarget(want.New(base)))
	return k
}

func TestSuccessAdvancesTheState(t *testing.T) {
	k := reading(holding(nil))
	k.Succeeded(create(web))
	if _, exists := k.State().Servers[web]; !exists || !k.Ours(web) {
		t.Errorf("exists is %t and ours is %t", exists, k.Ours(web))
	}
	k.Succeeded(kernel.Op{Verb: kernel.Delete, Object: kernel.Server{Key: web}})
	if _, exists := k.State().Servers[web]; exists || k.Ours(web) {
		t.Errorf("after the deletion, exists is %t and ours is %t", exists, k.Ours(web))
	}
}

func TestFailureMakesOnlyItsPlaceUnverified(t *testing.T) {
	k := reading(holding(nil))
	k.Failed(time.Time{}, create(web), errors.New("no memory"), diff.NewTarget(want.New(base)))
	if u := k.Unverified(); !u.Has(web) || u.Has(other) || u.Has(sibling) {
		t.Errorf("unverified: %v", u)
	}
	touched := want.NewTouched()
	touched.Servers[web], touched.Servers[other], touched.Servers[sibling] = struct{}{}, struct{}{}, struct{}{}
	if !k.Unverified().Concerns(touched) {
		t.Error("an unverified virtual server does not wait")
	}
	k.Unverified().Withhold(touched)
	if len(touched.Servers) != 2 || k.Unverified().Concerns(touched) {
		t.Errorf("objects left to compare: %+v", touched)
	}
	touched.Addresses[web.Addr.Addr()] = struct{}{}
	k.Unverified().Withhold(touched)
	if _, left := touched.Servers[other]; len(touched.Servers) != 1 || !left || len(touched.Addresses) != 0 {
		t.Errorf("objects left to compare: %+v", touched)
	}
	k.Replace(holding(nil))
	if len(k.Unverified()) > 0 {
		t.Errorf("still unverified after a full read: %v", k.Unverified())
	}
}

func TestContestedUntilTheKernelAgrees(t *testing.T) {
	for name, c := range map[string]struct {
		state *kernel.State
		want  bool
	}{
		"server and entry exist": {holding([]kernel.ServerKey{web}, web), true},
		"the entry is gone":      {holding([]kernel.ServerKey{web}), false},
		"the server is gone":     {holding(nil, web), false},
	} {
		t.Run(name, func(t *testing.T) {
			k := reading(holding(nil))
			k.Own(web)
			k.Contest(web)
			if k.Ours(web) {
				t.Error("a contested server counts as ours")
			}
			k.Replace(c.state)
			if k.ForgetContested(c.state, &base); k.Contested(web) != c.want {
				t.Errorf("contested: %t", k.Contested(web))
			}
		})
	}
}

func TestLookupReplacesServers(t *testing.T) {
	k := reading(holding([]kernel.ServerKey{web}))
	k.LookedUp([]kernel.ServerKey{web, other}, map[kernel.ServerKey]kernel.ObservedServer{other: {}})
	if _, exists := k.State().Servers[web]; exists || len(k.State().Servers) != 1 {
		t.Errorf("servers: %v", k.State().Servers)
	}
}

func TestSetUpdateMakesTheStateInexactOnce(t *testing.T) {
	k := reading(holding(nil))
	k.State().Sets = map[string]kernel.Set{}
	k.Succeeded(kernel.Op{Verb: kernel.Update, Object: kernel.Set{Name: "VIP"}})
	if !k.TakeInexact() || k.TakeInexact() {
		t.Error("TakeInexact must return true exactly once")
	}
}

func TestSchedulers(t *testing.T) {
	k := reading(holding(nil))
	asking := map[model.ServiceID]*model.Service{
		{Name: "a"}: {Balancing: model.Balancing{Scheduler: "sh"}}, {Name: "b"}: {}, {Name: "c"}: nil,
	}
	if names := k.Schedulers.ToProbe(asking, []string{"rr"}); !slices.Equal(names, []string{"rr", "sh"}) {
		t.Errorf("got schedulers to probe: %v", names)
	}
	k.Failed(time.Time{}, create(web), kernel.NoSchedulerError{Scheduler: "lc"}, diff.NewTarget(want.New(base)))
	taken := k.Schedulers.Take(map[string]bool{"sh": true})
	if available, known := taken["lc"]; !known || available || !taken["sh"] {
		t.Errorf("taken: %v", taken)
	}
	if names := k.Schedulers.ToProbe(asking, nil); len(names) > 0 {
		t.Errorf("these schedulers are probed twice: %v", names)
	}
	if taken := k.Schedulers.Take(nil); len(taken) > 0 {
		t.Errorf("these schedulers are taken twice: %v", taken)
	}
}

// The agent does not retry an optional sysctl that the kernel refuses. A lack of memory or file descriptors is not a
// refusal.
func TestOptionalSysctlIsSetAgain(t *testing.T) {
	sysctl := kernel.SysctlSetting{Name: "net/netfilter/nf_conntrack_max", Value: "1", Optional: true}
	for err, again := range map[error]bool{
		syscall.EACCES: false, syscall.EINVAL: false, errors.New("the value is 2"): false,
		syscall.ENOMEM: true, syscall.EMFILE: true, syscall.EINTR: true,
	} {
		k := reading(holding(nil))
		k.Failed(time.Time{}, kernel.Op{Verb: kernel.Ensure, Object: sysctl}, fmt.Errorf("set sysctl: %w", err), diff.NewTarget(want.New(base)))
		if (k.Unsettable(sysctl) == nil) != again {
			t.Errorf("%v: the sysctl was set again: %t, want %t", err, !again, again)
		}
	}
}

// The first audit returns everything, so it needs no list of what the first sync has written, which is the whole state.
func TestWritesBeforeTheFirstAuditAreNotKept(t *testing.T) {
	k := reading(holding(nil))
	k.Succeeded(create(web))
	if audit := k.BeginAudit(nil); !audit.All || len(audit.Servers) > 0 {
		t.Errorf("all is %t, and %d virtual servers are listed", audit.All, len(audit.Servers))
	}
	k.Succeeded(create(other))
	if !k.Written(other) || k.Written(web) {
		t.Errorf("written since the audit began: %t and %t, want only the second", k.Written(web), k.Written(other))
	}
}

// An audit's result is merged while changes wait, so it contains a member that was written, not its set.
func TestAuditsAskOnlyForWhatWasWritten(t *testing.T) {
	entry := want.LedgerEntry(base.Ledger, web)
	audited := func(ops ...kernel.Op) kernel.Audit {
		state := holding(nil)
		state.Sets = map[string]kernel.Set{}
		k := reading(state)
		k.BeginAudit(nil)
		k.Succeeded(ops...)
		return k.BeginAudit(nil)
	}
	a := audited(add(entry), add(kernel.BoundAddress{Addr: web.Addr.Addr()}), create(web))
	if len(a.Members) != 1 || len(a.Addresses) != 1 || len(a.Servers) != 1 || len(a.Sets) > 0 || a.AllAddresses {
		t.Errorf("after writes of single objects: %+v", a)
	}
	if a := audited(add(kernel.Set{Name: entry.Set}), add(kernel.DummyDevice{})); len(a.Sets) != 1 || !a.AllAddresses {
		t.Errorf("after writes of a set and the device: %+v", a)
	}
}

// TestMerge: what an audit returns becomes known, unless the agent has written it since the audit began.
func TestMerge(t *testing.T) {
	set, addr := kernel.Set{Name: "LEDGER"}, web.Addr.Addr()
	entry := want.LedgerEntry(base.Ledger, web)
	other := want.LedgerEntry(base.Ledger, other)
	remove := func(o kernel.Object) kernel.Op { return kernel.Op{Verb: kernel.Delete, Object: o} }
	usual, bound := []kernel.Member{entry}, []netip.Addr{addr}
	for name, c := range map[string]struct {
		before    []kernel.Op // by the agent, before the second audit begins
		change    func(actual *kernel.State)
		meanwhile []kernel.Op // by the agent, after that audit has read everything
		exist     []kernel.Member
		members   []kernel.Member
		addresses []netip.Addr
		differs   bool
		missing   int
	}{
		"nothing": {members: usual, addresses: bound},
		"a member is added": {
			change: func(s *kernel.State) { s.Members["LEDGER"][other.Element] = struct{}{} }, members: []kernel.Member{entry, other}, addresses: bound, differs: true,
		},
		"a member is deleted": {change: func(s *kernel.State) { delete(s.Members["LEDGER"], entry.Element) }, addresses: bound, differs: true, missing: 1},
		"a member was missed": {
			change: func(s *kernel.State) { delete(s.Members["LEDGER"], entry.Element) }, exist: []kernel.Member{entry}, members: usual, addresses: bound, missing: 1,
		},
		"a written member was refused": {before: []kernel.Op{add(other)}, members: usual, addresses: bound, differs: true, missing: 1},
		"a member is written":          {meanwhile: []kernel.Op{add(other), remove(entry)}, members: []kernel.Member{other}, addresses: bound},
		"a written member is deleted": {
			change: func(s *kernel.State) { delete(s.Members["LEDGER"], entry.Element) }, meanwhile: []kernel.Op{add(entry)}, members: usual, addresses: bound,
		},
		"a set is written again": {
			change: func(s *kernel.State) { clear(s.Members["LEDGER"]) }, meanwhile: []kernel.Op{add(set), add(entry)}, members: usual, addresses: bound,
		},
		"an address is deleted":      {change: func(s *kernel.State) { clear(s.Addresses) }, members: usual, differs: true},
		"a written address is gone":  {before: []kernel.Op{add(kernel.BoundAddress{Addr: other.Element.Addr})}, members: usual, addresses: bound, differs: true},
		"the device is created anew": {meanwhile: []kernel.Op{add(kernel.DummyDevice{})}, change: func(s *kernel.State) { clear(s.Addresses) }, members: usual, addresses: bound},
	} {
		actual := func() *kernel.State {
			s := kernel.NewState()
			s.Sets["LEDGER"], s.Members["LEDGER"], s.Addresses[addr] = set, map[kernel.Element]struct{}{entry.Element: {}}, kernel.OnDevice
			s.MayMiss = true
			return s
		}
		k, comparer := reading(actual()), kernel.Comparer{}
		k.Merge(comparer.Compare(actual(), k.BeginAudit(nil), nil))
		k.Succeeded(c.before...)
		asked, fresh := k.BeginAudit(nil), actual()
		if c.change != nil {
			c.change(fresh)
		}
		d := comparer.Compare(fresh, asked, nil)
		k.Succeeded(c.meanwhile...)
		missing := k.UnseenMembers(d)
		found := map[kernel.Member]struct{}{}
		for _, m := range c.exist {
			found[m] = struct{}{}
		}
		k.Exist(found)
		differs := k.Merge(d)
		have := k.State()
		if !keysAre(have.Members["LEDGER"], elements(c.members)) || !keysAre(have.Addresses, c.addresses) || differs != c.differs || len(missing) != c.missing {
			t.Errorf("%s: differs is %t, missing %v, now %v and %v", name, differs, missing, have.Members, have.Addresses)
		}
		if next := k.BeginAudit(nil); len(next.Members) < len(c.exist) {
			t.Errorf("%s: the next audit is asked for %v", name, next.Members)
		}
	}
}

func keysAre[K comparable, V any](m map[K]V, keys []K) bool {
	return len(m) == len(keys) && !slices.ContainsFunc(keys, func(k K) bool { _, exists := m[k]; return !exists })
}

func elements(members []kernel.Member) (list []kernel.Element) {
	for _, m := range members {
		list = append(list, m.Element)
	}
	return list
}

// A remedy is a command only in a mode in which that command would help.
func TestRemedyOfRefusedDeletion(t *testing.T) {
	for mode, remedy := range map[kernel.Mode]string{
		kernel.IPVSWithIPTables: "run `ipset del LEDGER 10.96.0.1,tcp:80` on the node",
		kernel.IPVSWithNFTables: "remove 10.96.0.1,tcp:80 from set LEDGER in nftables, table inet kube-ipvs",
		kernel.Userspace:        "restart the agent",
	} {
		k := New(mode)
		k.Replace(holding(nil, web))
		w := diff.NewTarget(want.New(base))
		k.BeginPlan(w)
		k.Failed(time.Time{}, kernel.Op{Verb: kernel.Delete, Object: want.LedgerEntry(base.Ledger, web)}, syscall.EINVAL, w)
		for _, problems := range k.Refusals.Problems() {
			if len(problems) != 1 || problems[0].Remedy != remedy {
				t.Errorf("%s: %v", mode, problems)
			}
		}
		if len(k.Refusals.Problems()) == 0 {
			t.Errorf("%s: no Problem", mode)
		}
	}
}
