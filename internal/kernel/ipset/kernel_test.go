package ipset

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

var compareAddrs = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

const prefix = "KIPVS-"

func open(t testing.TB) *Backend {
	t.Helper()
	labtest.NetNSNoIPVS(t)
	b, err := New()
	labtest.Opened(t, b, err)
	return b
}

func set(name string, typ kernel.SetType, f inet.Family) kernel.Set {
	return kernel.Set{Name: prefix + name, Type: typ, Family: f, MaxElem: 1 << 20}
}

func op(v kernel.Verb, o kernel.Object) kernel.Op { return kernel.Op{Verb: v, Object: o} }

func member(set string, e kernel.Element) kernel.Member {
	return kernel.Member{Set: prefix + set, Element: e}
}

func addr(s string) kernel.Element { return kernel.Element{Addr: netip.MustParseAddr(s)} }

func must(t testing.TB, b *Backend, ops ...kernel.Op) {
	t.Helper()
	if err := errors.Join(b.Apply(t.Context(), ops)...); err != nil {
		t.Fatal(err)
	}
}

func readAll(t testing.TB, b *Backend) (map[string]kernel.Set, map[string]map[kernel.Element]struct{}) {
	t.Helper()
	sets, members, err := b.Read(t.Context(), prefix)
	if err != nil {
		t.Fatal(err)
	}
	return sets, members
}

func everySet() []kernel.Set {
	var sets []kernel.Set
	for _, f := range inet.Families {
		for i, typ := range []kernel.SetType{kernel.HashIP, kernel.HashIPPort, kernel.HashIPPortIP, kernel.HashIPPortNet} {
			sets = append(sets, set(fmt.Sprintf("%s-%d", f, i), typ, f))
		}
	}
	return sets
}

func randomAddr(r *rand.Rand, f inet.Family) netip.Addr {
	b := make([]byte, f.Bits()/8)
	for i := range b {
		b[i] = byte(1 + r.IntN(255))
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func randomElement(r *rand.Rand, s kernel.Set) kernel.Element {
	e := kernel.Element{Addr: randomAddr(r, s.Family)}
	if s.Type != kernel.HashIP {
		e.Protocol = []inet.Protocol{inet.TCP, inet.UDP, inet.SCTP}[r.IntN(3)]
		e.Port = uint16(r.IntN(1 << 16))
	}
	if s.Type == kernel.HashIPPortIP {
		e.Addr2 = randomAddr(r, s.Family)
	}
	if s.Type == kernel.HashIPPortNet {
		e.Bits2 = uint8(1 + r.IntN(s.Family.Bits()))
		e.Addr2 = netip.PrefixFrom(randomAddr(r, s.Family), int(e.Bits2)).Masked().Addr()
	}
	return e
}

// This package, the library and the command all read objects back as they were written.
func TestRoundTrip(t *testing.T) {
	b := open(t)
	r := rand.New(rand.NewPCG(1, 2))
	var ops []kernel.Op
	wantSets := map[string]kernel.Set{}
	wantMembers := map[string]map[kernel.Element]struct{}{}
	for _, s := range everySet() {
		ops = append(ops, op(kernel.Create, s))
		wantSets[s.Name], wantMembers[s.Name] = s, map[kernel.Element]struct{}{}
		for range maxLines + 200 {
			e := randomElement(r, s)
			wantMembers[s.Name][e] = struct{}{}
			ops = append(ops, op(kernel.Create, kernel.Member{Set: s.Name, Element: e}))
		}
	}
	before := b.Stats().Sends
	must(t, b, ops...)
	t.Logf("%d operations in %d sends", len(ops), b.Stats().Sends-before)

	sets, members := readAll(t, b)
	if diff := cmp.Diff(wantSets, sets); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(wantMembers, members, compareAddrs); diff != "" {
		t.Error(diff)
	}
	for name, want := range wantMembers {
		if diff := cmp.Diff(want, libraryMembers(t, name), compareAddrs); diff != "" {
			t.Errorf("library reads %s: %s", name, diff)
		}
		if diff := cmp.Diff(texts(want), savedMembers(t, name)); diff != "" {
			t.Errorf("ipset save %s: %s", name, diff)
		}
	}

	ops = ops[:0]
	for name, m := range wantMembers {
		for e := range m {
			ops = append(ops, op(kernel.Delete, kernel.Member{Set: name, Element: e}))
		}
		ops = append(ops, op(kernel.Delete, wantSets[name]))
	}
	must(t, b, ops...)
	if sets, _ := readAll(t, b); len(sets) != 0 {
		t.Errorf("left: %v", sets)
	}
}

func libraryMembers(t *testing.T, name string) map[kernel.Element]struct{} {
	t.Helper()
	list, err := netlink.IpsetList(name)
	if err != nil {
		t.Fatal(err)
	}
	members := map[kernel.Element]struct{}{}
	for _, entry := range list.Entries {
		var e kernel.Element
		e.Addr, _ = netip.AddrFromSlice(entry.IP)
		e.Addr2, _ = netip.AddrFromSlice(entry.IP2)
		if entry.Port != nil {
			e.Port, e.Protocol = *entry.Port, inet.Protocol(*entry.Protocol)
		}
		if list.TypeName == string(kernel.HashIPPortNet) {
			e.Bits2 = entry.CIDR2
		}
		members[e] = struct{}{}
	}
	return members
}

func texts(members map[kernel.Element]struct{}) []string {
	var all []string
	for e := range members {
		all = append(all, e.String())
	}
	slices.Sort(all)
	return all
}

func savedMembers(t *testing.T, name string) []string {
	t.Helper()
	var all []string
	for line := range strings.Lines(labtest.Run(t, "ipset save "+name)) {
		if e, ok := strings.CutPrefix(line, "add "+name+" "); ok {
			all = append(all, strings.TrimSpace(e))
		}
	}
	slices.Sort(all)
	return all
}

func TestMembersAreIdempotent(t *testing.T) {
	b := open(t)
	s := set("V", kernel.HashIP, inet.IPv4)
	m := member("V", addr("10.0.0.1"))
	must(t, b, op(kernel.Create, s), op(kernel.Create, m), op(kernel.Create, m), op(kernel.Delete, m), op(kernel.Delete, m),
		op(kernel.Create, m))
	if _, members := readAll(t, b); len(members[s.Name]) != 1 {
		t.Errorf("got %v", members)
	}
	must(t, b, op(kernel.Delete, member("ABSENT", addr("10.0.0.1"))))
	errs := b.Apply(t.Context(), []kernel.Op{op(kernel.Create, member("ABSENT", addr("10.0.0.1")))})
	if !errors.Is(errs[0], kernel.ErrNotFound) {
		t.Error(errs[0])
	}
}

// Apply returns an error for each refused member, and adds all others.
func TestMemberErrorsAreAttributed(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, share := range []float64{0, 0.001, 0.1, 0.9, 1} {
		t.Run(fmt.Sprint(share), func(t *testing.T) {
			b := open(t)
			must(t, b, op(kernel.Create, set("V", kernel.HashIP, inet.IPv4)))
			var ops []kernel.Op
			var bad []bool
			want := map[kernel.Element]struct{}{}
			for i := range 1200 {
				e := kernel.Element{Addr: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})}
				isBad := r.Float64() < share
				switch {
				case isBad && i%3 == 0:
					e = addr("fd00::1") // an element of the wrong family
				case isBad && i%3 == 1:
					e = addr("0.0.0.0") // an element that is not valid for this set type
				case isBad:
					e = kernel.Element{} // cannot be sent
				default:
					want[e] = struct{}{}
				}
				ops, bad = append(ops, op(kernel.Create, member("V", e))), append(bad, isBad)
			}
			before := b.Stats()
			for i, err := range b.Apply(t.Context(), ops) {
				if (err != nil) != bad[i] {
					t.Fatalf("%s: %v", ops[i], err)
				}
			}
			after := b.Stats()
			t.Logf("%d sends, %d requests", after.Sends-before.Sends, after.Requests-before.Requests)
			_, members := readAll(t, b)
			if diff := cmp.Diff(want, members[prefix+"V"], compareAddrs); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestFullSet(t *testing.T) {
	b := open(t)
	s := set("V", kernel.HashIP, inet.IPv4)
	s.MaxElem = 64
	must(t, b, op(kernel.Create, s))
	var ops []kernel.Op
	for i := range 1000 {
		ops = append(ops, op(kernel.Create, member("V", kernel.Element{Addr: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})})))
	}
	before := b.Stats()
	full := 0
	for _, err := range b.Apply(t.Context(), ops) {
		if err == nil {
			continue
		}
		full++
		if !errors.Is(err, kernel.ErrFull) || !strings.Contains(err.Error(), "KIPVS-V holds 64 members") {
			t.Fatal(err)
		}
	}
	after := b.Stats()
	t.Logf("%d refused in %d sends, %d requests", full, after.Sends-before.Sends, after.Requests-before.Requests)
	if _, members := readAll(t, b); len(members[s.Name])+full != 1000 {
		t.Errorf("the set has %d members after %d errors, want 1000 in total", len(members[s.Name]), full)
	}
	// Adding an existing member is not an error, even in a full set.
	if err := b.Apply(t.Context(), ops[:1])[0]; err != nil {
		t.Error(err)
	}
}

// Additions and removals of the same element in one call keep their order, even if other members are rejected.
func TestOrderOfVerbs(t *testing.T) {
	b := open(t)
	s := set("V", kernel.HashIP, inet.IPv4)
	bad, x, y := member("V", addr("0.0.0.0")), member("V", addr("10.0.0.1")), member("V", addr("10.0.0.2"))
	errs := b.Apply(t.Context(), []kernel.Op{
		op(kernel.Create, s), op(kernel.Create, bad), op(kernel.Create, x), op(kernel.Create, y), op(kernel.Delete, x),
	})
	if errs[1] == nil || errors.Join(errs[0], errs[2], errs[3], errs[4]) != nil {
		t.Error(errs)
	}
	if diff := cmp.Diff([]string{"10.0.0.2"}, savedMembers(t, s.Name)); diff != "" {
		t.Error(diff)
	}
}

func TestCreateAndDeleteSet(t *testing.T) {
	b := open(t)
	s := set("V", kernel.HashIP, inet.IPv4)
	must(t, b, op(kernel.Delete, s), op(kernel.Create, s))
	other := s
	other.Type = kernel.HashIPPort
	for _, again := range []kernel.Set{s, other} {
		if err := b.Apply(t.Context(), []kernel.Op{op(kernel.Create, again)})[0]; !errors.Is(err, kernel.ErrExists) {
			t.Errorf("create %s: %v", again, err)
		}
	}
	useInRule(t, s.Name, "dst")
	err := b.Apply(t.Context(), []kernel.Op{op(kernel.Delete, s)})[0]
	if !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "rule still refers") {
		t.Error(err)
	}
	labtest.Run(t, "iptables -F")
	must(t, b, op(kernel.Delete, s))
}

func useInRule(t *testing.T, name, directions string) {
	t.Helper()
	labtest.Run(t, "iptables -A INPUT -m set --match-set "+name+" "+directions+" -j ACCEPT")
}

// Update changes the parameters of a set, and keeps its members if they fit.
func TestUpdateSet(t *testing.T) {
	v := prefix + "V"
	for _, tt := range []struct {
		name    string
		before  string // arguments of ipset create
		members string
		rule    string // direction in a rule that uses the set, such as dst; empty if there is no rule
		want    kernel.Set
		kept    int
		err     string
	}{
		{name: "right", before: "hash:ip maxelem 100", members: "10.0.0.1", rule: "dst", kept: 1,
			want: kernel.Set{Name: v, Type: kernel.HashIP, Family: inet.IPv4, MaxElem: 100}},
		{name: "other maxelem", before: "hash:ip maxelem 100", members: "10.0.0.1", rule: "dst", kept: 1,
			want: kernel.Set{Name: v, Type: kernel.HashIP, Family: inet.IPv4, MaxElem: 200}},
		{name: "smaller maxelem", before: "hash:ip maxelem 100", members: "10.0.0.1 10.0.0.2", rule: "dst", kept: 0,
			want: kernel.Set{Name: v, Type: kernel.HashIP, Family: inet.IPv4, MaxElem: 1}},
		{name: "with a timeout", before: "hash:ip,port timeout 60 comment", members: "10.0.0.1,tcp:80", rule: "dst,dst",
			want: kernel.Set{Name: v, Type: kernel.HashIPPort, Family: inet.IPv4, MaxElem: 65536}},
		{name: "other type", before: "hash:ip", members: "10.0.0.1",
			want: kernel.Set{Name: v, Type: kernel.HashIPPort, Family: inet.IPv4, MaxElem: 100}},
		{name: "other family", before: "hash:ip", members: "10.0.0.1",
			want: kernel.Set{Name: v, Type: kernel.HashIP, Family: inet.IPv6, MaxElem: 100}},
		{name: "other type, in use", before: "hash:ip", members: "10.0.0.1", rule: "dst", err: "cannot be swapped or destroyed",
			want: kernel.Set{Name: v, Type: kernel.HashIPPort, Family: inet.IPv4, MaxElem: 100}},
		{name: "foreign type", before: "bitmap:port range 0-65535", members: "80",
			want: kernel.Set{Name: v, Type: kernel.HashIPPort, Family: inet.IPv4, MaxElem: 100}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := open(t)
			labtest.Run(t, "ipset create "+v+" "+tt.before)
			for _, m := range strings.Fields(tt.members) {
				labtest.Run(t, "ipset add "+v+" "+m)
			}
			if tt.rule != "" {
				useInRule(t, v, tt.rule)
			}
			err := b.Apply(t.Context(), []kernel.Op{op(kernel.Update, tt.want)})[0]
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) || !errors.Is(err, unix.EBUSY) {
					t.Errorf("error %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			sets, members := readAll(t, b)
			if diff := cmp.Diff(map[string]kernel.Set{v: tt.want}, sets); diff != "" {
				t.Error(diff)
			}
			if len(members[v]) != tt.kept {
				t.Errorf("members %v, want %d", members[v], tt.kept)
			}
		})
	}
}

func TestUpdateAbsentSet(t *testing.T) {
	b := open(t)
	err := b.Apply(t.Context(), []kernel.Op{op(kernel.Update, set("V", kernel.HashIP, inet.IPv4))})[0]
	if !errors.Is(err, kernel.ErrNotFound) {
		t.Error(err)
	}
}

// Read skips foreign sets. It returns sets with our prefix even if another program created them with another type.
func TestReadForeignSets(t *testing.T) {
	b := open(t)
	labtest.Run(t, "ipset create OTHER hash:net")
	labtest.Run(t, "ipset create KIPVS-LIST list:set")
	labtest.Run(t, "ipset create KIPVS-BITMAP bitmap:port range 0-65535")
	labtest.Run(t, "ipset create KIPVS-T hash:ip,port family inet6 timeout 5 counters maxelem 10")
	labtest.Run(t, "ipset create KIPVS-M hash:ip netmask 24")
	labtest.Run(t, "ipset add KIPVS-BITMAP 80")
	labtest.Run(t, "ipset add KIPVS-T fd00::1,tcp:80")
	sets, members := readAll(t, b)
	want := map[string]kernel.Set{
		"KIPVS-LIST":   {Name: "KIPVS-LIST", Type: "list:set"},
		"KIPVS-BITMAP": {Name: "KIPVS-BITMAP", Type: "bitmap:port"},
		"KIPVS-T":      {Name: "KIPVS-T", Type: "hash:ip,port timeout counters", Family: inet.IPv6, MaxElem: 10},
		"KIPVS-M":      {Name: "KIPVS-M", Type: "hash:ip netmask", Family: inet.IPv4, MaxElem: 65536},
	}
	if diff := cmp.Diff(want, sets); diff != "" {
		t.Error(diff)
	}
	for name, m := range members {
		if len(m) != 0 {
			t.Errorf("%s has members %v", name, m)
		}
	}
}
