package kerneltest

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// The first audit returns everything. Later audits return the differences and the objects named in the request.
func audits(b *bench) {
	web := kernel.Server{Key: kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: inet.TCP}, Scheduler: "rr", MaskBits: 32}
	dns := web
	dns.Key.Addr = netip.MustParseAddrPort("10.96.0.2:53")
	set := kernel.Set{Name: SetPrefix + "A", Type: kernel.HashIP, Family: inet.IPv4, MaxElem: 16}
	member := kernel.Member{Set: set.Name, Element: kernel.Element{Addr: web.Key.Addr.Addr()}}
	other := set
	other.Name += "B"
	second := member
	second.Element.Addr = dns.Key.Addr.Addr()
	bound := kernel.BoundAddress{Addr: member.Element.Addr}
	b.must(ops(kernel.Create, web, dns, set, other, member, second, kernel.DummyDevice{})...)
	first, both := element(member), element(member, second)
	all := told{addresses: everything[netip.Addr, kernel.Binding](nil), members: map[string]memberChanges{
		set.Name: everything(both), other.Name: everything(element()),
	}}
	b.tells(kernel.Audit{}, all, web.Key, dns.Key)
	b.tells(kernel.Audit{}, told{})
	b.tells(kernel.Audit{All: true}, all, web.Key, dns.Key)

	b.must(op(kernel.Delete, dns), op(kernel.Delete, member), op(kernel.Create, bound))
	now := map[netip.Addr]kernel.Binding{bound.Addr: b.read().Addresses[bound.Addr]}
	b.tells(kernel.Audit{}, told{members: map[string]memberChanges{set.Name: {Gone: first}}, addresses: addressChanges{Now: now}}, dns.Key)
	b.tells(kernel.Audit{Servers: map[kernel.ServerKey]struct{}{web.Key: {}}}, told{}, web.Key)
	b.tells(kernel.Audit{Limited: []kernel.ServerKey{dns.Key, web.Key}, AllAddresses: true}, told{addresses: everything(now)}, web.Key, dns.Key)
	b.tells(kernel.Audit{Sets: map[string]struct{}{other.Name: {}, set.Name: {}}}, told{members: map[string]memberChanges{
		set.Name: everything(element(second)), other.Name: everything(element()),
	}})
	// Members and addresses that the agent has written are returned alone, whether or not they exist.
	b.tells(kernel.Audit{Members: map[kernel.Member]struct{}{second: {}, member: {}}}, told{members: map[string]memberChanges{
		set.Name: {Now: element(second), Gone: first},
	}})
	b.tells(kernel.Audit{Addresses: map[netip.Addr]struct{}{bound.Addr: {}, second.Element.Addr: {}}}, told{
		addresses: addressChanges{Now: now, Gone: map[netip.Addr]struct{}{second.Element.Addr: {}}},
	})

	update := web
	update.Scheduler = "wrr"
	b.must(op(kernel.Update, update))
	b.tells(kernel.Audit{}, told{}, web.Key)
}

type (
	memberChanges  = kernel.Changes[kernel.Element, struct{}]
	addressChanges = kernel.Changes[netip.Addr, kernel.Binding]
)

// told is what an audit returns besides virtual servers.
type told struct {
	members   map[string]memberChanges
	addresses addressChanges
}

func element(members ...kernel.Member) map[kernel.Element]struct{} {
	all := map[kernel.Element]struct{}{}
	for _, m := range members {
		all[m.Element] = struct{}{}
	}
	return all
}

func everything[K, V comparable](now map[K]V) kernel.Changes[K, V] {
	return kernel.Changes[K, V]{All: true, Now: now}
}

// tells checks which objects an audit returns.
func (b *bench) tells(asked kernel.Audit, want told, servers ...kernel.ServerKey) {
	b.Helper()
	d, err := b.Audit(context.Background(), asked)
	if err != nil {
		b.Fatal(err)
	}
	read := b.read()
	if reported := slices.SortedFunc(maps.Keys(d.Servers), kernel.ServerKey.Compare); !slices.Equal(reported, servers) {
		b.Errorf("virtual servers %v, want %v", reported, servers)
	}
	for key, reported := range d.Servers {
		if server, exists := read.Servers[key]; exists != (reported != nil) || exists && !reported.SameConfig(server) {
			b.Errorf("%s: %v, want %v", key, reported, server)
		}
	}
	if !maps.EqualFunc(d.Members, want.members, same) {
		b.Errorf("members %v, want %v", d.Members, want.members)
	}
	if !same(d.Addresses, want.addresses) {
		b.Errorf("addresses %v, want %v", d.Addresses, want.addresses)
	}
	holds(b, "sets", read.Sets, d.Base.Sets)
	holds(b, "sysctls", read.Sysctls, d.Base.Sysctls)
	own, err := b.NodeAddresses(context.Background())
	if err != nil || d.Node == nil {
		b.Fatal("the audit, or the kernel, has no addresses of the node", err)
	}
	holds(b, "the node's addresses", own, d.Node.Addresses)
}

func same[K, V comparable](a, b kernel.Changes[K, V]) bool {
	return a.All == b.All && maps.Equal(a.Now, b.Now) && maps.Equal(a.Gone, b.Gone)
}
