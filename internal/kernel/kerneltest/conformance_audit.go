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
	all := map[string]int{set.Name: 2, other.Name: 0}
	b.tells(kernel.Audit{}, 0, all, web.Key, dns.Key)
	b.tells(kernel.Audit{}, 0, nil)
	b.tells(kernel.Audit{All: true}, 0, all, web.Key, dns.Key)

	b.must(op(kernel.Delete, dns), op(kernel.Delete, member), op(kernel.Create, bound))
	b.tells(kernel.Audit{}, 1, map[string]int{set.Name: 1}, dns.Key)
	b.tells(kernel.Audit{Servers: map[kernel.ServerKey]struct{}{web.Key: {}}}, 0, nil, web.Key)
	b.tells(kernel.Audit{Limited: []kernel.ServerKey{dns.Key, web.Key}, AllAddresses: true}, 1, nil, web.Key, dns.Key)
	b.tells(kernel.Audit{Sets: map[string]struct{}{other.Name: {}}}, 0, map[string]int{other.Name: 0})
	// Members and addresses that the agent has written are returned alone, whether or not they exist.
	b.tells(kernel.Audit{Members: map[kernel.Member]struct{}{second: {}}}, 0, map[string]int{set.Name: 1})
	b.tells(kernel.Audit{Members: map[kernel.Member]struct{}{member: {}}}, 0, map[string]int{set.Name: 1})
	b.tells(kernel.Audit{Addresses: map[netip.Addr]struct{}{bound.Addr: {}, second.Element.Addr: {}}}, 2, nil)

	update := web
	update.Scheduler = "wrr"
	b.must(op(kernel.Update, update))
	b.tells(kernel.Audit{}, 0, nil, web.Key)
}

// tells checks which objects an audit returns, how many members of each set, how many addresses, and that they match a read.
func (b *bench) tells(asked kernel.Audit, addresses int, sets map[string]int, servers ...kernel.ServerKey) {
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
	reported := map[string]int{}
	for name, members := range d.Members {
		reported[name] = members.Len()
		match(b, "members of "+name, read.Members[name], members)
	}
	if !maps.Equal(reported, sets) {
		b.Errorf("members %v, want %v", reported, sets)
	}
	if match(b, "addresses", read.Addresses, d.Addresses); d.Addresses.Len() != addresses {
		b.Errorf("%d addresses, want %d: %v", d.Addresses.Len(), addresses, d.Addresses)
	}
	holds(b, "sets", read.Sets, d.Base.Sets)
	holds(b, "sysctls", read.Sysctls, d.Base.Sysctls)
	own, err := b.NodeAddresses(context.Background())
	if err != nil || d.Node == nil {
		b.Fatal("the audit, or the kernel, has no addresses of the node", err)
	}
	holds(b, "the node's addresses", own, d.Node.Addresses)
}

// match checks that what an audit returned matches a read.
func match[K, V comparable](b *bench, what string, read map[K]V, reported kernel.Changes[K, V]) {
	b.Helper()
	for key, value := range reported.Now {
		if now, exists := read[key]; !exists || now != value {
			b.Errorf("%s: reported %v with %v, read %v", what, key, value, now)
		}
	}
	for key := range reported.Gone {
		if _, exists := read[key]; exists {
			b.Errorf("%s: %v is reported as gone", what, key)
		}
	}
	if reported.All && len(reported.Now) != len(read) {
		b.Errorf("%s: %d reported, %d read", what, len(reported.Now), len(read))
	}
}
