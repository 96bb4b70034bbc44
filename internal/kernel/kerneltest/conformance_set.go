package kerneltest

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func kindsOfSet() map[kernel.Set]kernel.Element {
	list := map[kernel.Set]kernel.Element{}
	for _, family := range inet.Families {
		a, a2 := ip4(96, 1), ip4(96, 2)
		if family == inet.IPv6 {
			a, a2 = ip6(96, 1), ip6(96, 2)
		}
		name := func(what string) string { return fmt.Sprintf("%s%s-%d", SetPrefix, what, family) }
		list[kernel.Set{Name: name("IP"), Type: kernel.HashIP, Family: family, MaxElem: 65536}] =
			kernel.Element{Addr: a}
		list[kernel.Set{Name: name("IPPORT"), Type: kernel.HashIPPort, Family: family, MaxElem: 1048576}] =
			kernel.Element{Addr: a, Protocol: inet.TCP, Port: 80}
		list[kernel.Set{Name: name("IPPORTIP"), Type: kernel.HashIPPortIP, Family: family, MaxElem: 10}] =
			kernel.Element{Addr: a, Protocol: inet.UDP, Port: 53, Addr2: a2}
		list[kernel.Set{Name: name("IPPORTNET"), Type: kernel.HashIPPortNet, Family: family, MaxElem: 10}] =
			rangeOf(netip.PrefixFrom(a2, a2.BitLen()-2).Masked())
	}
	return list
}

func rangeOf(clients netip.Prefix) kernel.Element {
	e := kernel.Element{Addr: ip4(96, 1), Protocol: inet.TCP, Port: 80, Addr2: clients.Addr(), Bits2: uint8(clients.Bits())}
	if clients.Addr().Is6() {
		e.Addr = ip6(96, 1)
	}
	return e
}

func setNamed(name string) kernel.Set {
	return kernel.Set{Name: SetPrefix + name, Type: kernel.HashIP, Family: inet.IPv4, MaxElem: 1024}
}

func member(s kernel.Set, e kernel.Element) kernel.Member {
	return kernel.Member{Set: s.Name, Element: e}
}

func elements(list ...kernel.Element) map[kernel.Element]struct{} {
	all := map[kernel.Element]struct{}{}
	for _, e := range list {
		all[e] = struct{}{}
	}
	return all
}

func setReadBack(b *bench) {
	sets, members := map[string]kernel.Set{}, map[string]map[kernel.Element]struct{}{}
	for s, e := range kindsOfSet() {
		b.must(creates(s, member(s, e))...)
		sets[s.Name], members[s.Name] = s, elements(e)
	}
	empty := setNamed(strings.Repeat("x", maxSetName-len(SetPrefix)))
	b.must(op(kernel.Create, empty))
	sets[empty.Name], members[empty.Name] = empty, nil

	protocols := kernel.Set{Name: SetPrefix + "P", Type: kernel.HashIPPort, Family: inet.IPv4, MaxElem: 10}
	b.must(op(kernel.Create, protocols))
	all := elements()
	for _, p := range []inet.Protocol{inet.TCP, inet.UDP, inet.SCTP} {
		for _, port := range []uint16{1, 80, 65535} {
			e := kernel.Element{Addr: ip4(96, 1), Protocol: p, Port: port}
			b.must(op(kernel.Create, member(protocols, e)))
			all[e] = struct{}{}
		}
	}
	sets[protocols.Name], members[protocols.Name] = protocols, all

	for _, whole := range []netip.Addr{netip.MustParseAddr("203.0.113.255"), netip.MustParseAddr("2001:db8:ffff::ffff")} {
		family := inet.FamilyOf(whole)
		s := kernel.Set{Name: fmt.Sprintf("%sNET-%d", SetPrefix, family), Type: kernel.HashIPPortNet, Family: family, MaxElem: 200}
		b.must(op(kernel.Create, s))
		all := elements()
		for bits := 1; bits <= whole.BitLen(); bits++ {
			e := rangeOf(netip.PrefixFrom(whole, bits).Masked())
			b.must(op(kernel.Create, member(s, e)))
			all[e] = struct{}{}
			if b.OwnTable && bits < whole.BitLen() {
				holds(b, s.Name, all, b.read().Members[s.Name])
				b.must(op(kernel.Delete, member(s, e)))
				delete(all, e)
			}
		}
		sets[s.Name], members[s.Name] = s, all
	}

	have := b.read()
	holds(b, "sets", sets, have.Sets)
	holds(b, "members", members, have.Members)
	for name := range sets {
		if _, ok := have.Members[name]; !ok {
			b.Errorf("no list of members for %s", name)
		}
	}
}

func setRefusals(b *bench) {
	s := setNamed("A")
	b.must(op(kernel.Create, s))
	bigger, six, ports := s, s, s
	bigger.MaxElem, six.Family, ports.Type = 2*s.MaxElem, inet.IPv6, kernel.HashIPPort
	b.refused(kernel.ErrExists, creates(s, bigger, six, ports)...)
	b.refused(nil, op(kernel.Create, setNamed(strings.Repeat("x", maxSetName))))
	b.must(op(kernel.Delete, s), op(kernel.Delete, s))
	b.refused(kernel.ErrNotFound, op(kernel.Update, s))
}

func setReplace(b *bench) {
	s, e, e2 := setNamed("A"), kernel.Element{Addr: ip4(96, 1)}, kernel.Element{Addr: ip4(96, 2)}
	b.must(creates(s, member(s, e), member(s, e2))...)
	b.must(op(kernel.Ensure, matching(s)), op(kernel.Update, s))
	replaced := func(what string, to kernel.Set, members ...kernel.Element) {
		b.Helper()
		b.must(op(kernel.Update, to))
		have := b.read()
		holds(b, what, map[string]kernel.Set{s.Name: to}, have.Sets)
		holds(b, what, elements(members...), have.Members[s.Name])
	}
	bigger, tiny, six, ports := s, s, s, s
	bigger.MaxElem, tiny.MaxElem, six.Family, ports.Type = 2*s.MaxElem, 1, inet.IPv6, kernel.HashIPPort
	replaced("a bigger set keeps its members", bigger, e, e2)
	replaced("a set too small for its members has none", tiny)
	b.refused(nil, op(kernel.Update, six), op(kernel.Update, ports))
	b.must(op(kernel.Create, member(s, e)), op(kernel.Delete, matching(s)))
	replaced("another family", six)
	replaced("another type", ports)
}

func setInUse(b *bench) {
	s := setNamed("A")
	b.must(creates(s)...)
	rules := matching(s)
	b.must(op(kernel.Ensure, rules))
	b.refused(nil, op(kernel.Delete, s))
	b.must(op(kernel.Delete, rules), op(kernel.Delete, s))
	holds(b, "sets", nil, b.read().Sets)
}

func setFull(b *bench) {
	s := setNamed("A")
	s.MaxElem = 3
	b.must(op(kernel.Create, s))
	var all []kernel.Op
	for i := range 5 {
		all = append(all, op(kernel.Create, member(s, kernel.Element{Addr: ip4(96, i+1)})))
	}
	for i, err := range b.apply(all...) {
		want := "done"
		if i >= 3 {
			want = kernel.ErrFull.Error()
		}
		if got := meaning(err); got != want {
			b.Errorf("%s: %v, want: %s", all[i], err, want)
		}
	}
	// A full set keeps its members. After a deletion, it accepts a new member.
	b.must(all[0], op(kernel.Delete, all[1].Object), all[4])
	first, third, fifth := all[0].Object.(kernel.Member), all[2].Object.(kernel.Member), all[4].Object.(kernel.Member)
	holds(b, "members", elements(first.Element, third.Element, fifth.Element), b.read().Members[s.Name])
}

func setByOthers(b *bench) {
	ours, theirs := setNamed("A"), setNamed("B")
	foreign := setNamed("C")
	foreign.Name = "other"
	b.byAdmin(b.Admin.CreateSet(theirs))
	b.byAdmin(b.Admin.CreateSet(foreign))
	b.must(creates(ours, member(ours, kernel.Element{Addr: ip4(96, 1)}))...)
	// Read returns all sets with the prefix, even those that another program created, and no other sets.
	holds(b, "sets", map[string]kernel.Set{ours.Name: ours, theirs.Name: theirs}, b.read().Sets)
	b.byAdmin(b.Admin.FlushSet(ours.Name))
	holds(b, "members after a flush", nil, b.read().Members[ours.Name])
	b.byAdmin(b.Admin.DestroySet(ours.Name))
	b.byAdmin(b.Admin.DestroySet(foreign.Name))
	holds(b, "sets after destroy", map[string]kernel.Set{theirs.Name: theirs}, b.read().Sets)
}

func lookupMembers(b *bench) {
	ask := func(members ...kernel.Member) map[kernel.Member]struct{} {
		found, err := b.LookupMembers(context.Background(), members)
		if err != nil {
			b.Fatalf("look up members: %v", err)
		}
		return found
	}
	holds(b, "nothing", nil, ask())
	for s, e := range kindsOfSet() {
		there := member(s, e)
		b.must(creates(s, there)...)
		absent, noSet, otherFamily, narrower := there, there, there, there
		absent.Element.Addr = absent.Element.Addr.Next().Next()
		noSet.Set = SetPrefix + "NONE"
		otherFamily.Element.Addr = netip.MustParseAddr("fd00::1")
		if s.Family == inet.IPv6 {
			otherFamily.Element.Addr = ip4(96, 1)
		}
		all := []kernel.Member{absent, there, noSet, otherFamily}
		if s.Type == kernel.HashIPPortNet {
			narrower.Element.Bits2++
			all = append(all, narrower)
		}
		holds(b, s.String(), map[kernel.Member]struct{}{there: {}}, ask(all...))
	}
}

func memberRefusals(b *bench) {
	missing := kernel.Member{Set: SetPrefix + "NONE", Element: kernel.Element{Addr: ip4(96, 1)}}
	b.refused(kernel.ErrNotFound, op(kernel.Create, missing))
	all := kindsOfSet()
	var bad []kernel.Op
	for s := range all {
		b.must(op(kernel.Create, s))
		for other, wrong := range all {
			// The kernel accepts a single address as a range; the fake rejects it.
			single := s.Type == kernel.HashIPPortNet && other.Type == kernel.HashIPPortIP
			if other.Family != s.Family || other.Type != s.Type && !single {
				bad = append(bad, op(kernel.Create, member(s, wrong)), op(kernel.Delete, member(s, wrong)))
			}
		}
		if s.Type == kernel.HashIP {
			null := kernel.Element{Addr: netip.IPv4Unspecified()}
			if s.Family == inet.IPv6 {
				null.Addr = netip.IPv6Unspecified()
			}
			bad = append(bad, op(kernel.Create, member(s, null)))
		}
		if s.Type == kernel.HashIPPortNet {
			uneven, long := all[s], all[s]
			uneven.Bits2--
			uneven.Addr2 = uneven.Addr2.Next()
			long.Bits2 = uint8(s.Family.Bits() + 1)
			bad = append(bad, op(kernel.Create, member(s, uneven)), op(kernel.Create, member(s, long)))
		}
	}
	b.refused(nil, bad...)
	for s, e := range all {
		b.must(op(kernel.Create, member(s, e)))
	}
}

func memberIsIdempotent(b *bench) {
	e := kernel.Element{Addr: ip4(96, 1)}
	b.must(op(kernel.Delete, kernel.Member{Set: SetPrefix + "NONE", Element: e}))
	for s, e := range kindsOfSet() {
		add, del := op(kernel.Create, member(s, e)), op(kernel.Delete, member(s, e))
		b.must(op(kernel.Create, s), del, add, add)
		holds(b, s.String(), elements(e), b.read().Members[s.Name])
		b.must(del, del)
		holds(b, s.String(), nil, b.read().Members[s.Name])
		b.must(op(kernel.Delete, s), op(kernel.Delete, s), del)
	}
}

func manyMembers(b *bench) {
	const n = 8000 // more than fits into one message, or into one socket buffer
	for _, family := range inet.Families {
		s := kernel.Set{Name: fmt.Sprintf("%sBIG-%d", SetPrefix, family), Type: kernel.HashIPPort, Family: family, MaxElem: 65536}
		all, want := []kernel.Op{op(kernel.Create, s)}, elements()
		for i := range n {
			e := kernel.Element{Addr: ip4(96, i), Protocol: inet.TCP, Port: uint16(i)}
			if family == inet.IPv6 {
				e.Addr = ip6(96, i)
			}
			want[e] = struct{}{}
			all = append(all, op(kernel.Create, member(s, e)))
		}
		b.must(all...)
		holds(b, s.String(), want, b.read().Members[s.Name])
		for i := range all {
			all[i].Verb = kernel.Delete
		}
		b.must(all[1:]...)
		holds(b, s.String()+" emptied", nil, b.read().Members[s.Name])
	}
}
