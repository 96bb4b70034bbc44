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
	b.must(ops(kernel.Create, web, dns, set, other, member, kernel.DummyDevice{})...)
	b.tells(kernel.Audit{}, true, []string{set.Name, other.Name}, web.Key, dns.Key)
	b.tells(kernel.Audit{}, false, nil)
	b.tells(kernel.Audit{All: true}, true, []string{set.Name, other.Name}, web.Key, dns.Key)

	b.must(op(kernel.Delete, dns), op(kernel.Delete, member), op(kernel.Create, kernel.BoundAddress{Addr: member.Element.Addr}))
	b.tells(kernel.Audit{}, true, []string{set.Name}, dns.Key)
	b.tells(kernel.Audit{Servers: map[kernel.ServerKey]struct{}{web.Key: {}}}, false, nil, web.Key)
	b.tells(kernel.Audit{Limited: []kernel.ServerKey{dns.Key, web.Key}, Addresses: true}, true, nil, web.Key, dns.Key)
	b.tells(kernel.Audit{Sets: map[string]struct{}{other.Name: {}}}, false, []string{other.Name})

	update := web
	update.Scheduler = "wrr"
	b.must(op(kernel.Update, update))
	b.tells(kernel.Audit{}, false, nil, web.Key)
}

// tells checks which objects an audit returns, and that they match a read.
func (b *bench) tells(asked kernel.Audit, addresses bool, sets []string, servers ...kernel.ServerKey) {
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
	if reported := slices.Sorted(maps.Keys(d.Members)); !slices.Equal(reported, sets) {
		b.Errorf("sets %v, want %v", reported, sets)
	}
	for name, members := range d.Members {
		holds(b, "members of "+name, read.Members[name], members)
	}
	if (d.Addresses != nil) != addresses {
		b.Errorf("addresses %v", d.Addresses)
	}
	holds(b, "sets", read.Sets, d.Base.Sets)
	holds(b, "sysctls", read.Sysctls, d.Base.Sysctls)
	own, err := b.NodeAddresses(context.Background())
	if err != nil || d.Node == nil {
		b.Fatal("the audit, or the kernel, has no addresses of the node", err)
	}
	holds(b, "the node's addresses", own, d.Node.Addresses)
}
