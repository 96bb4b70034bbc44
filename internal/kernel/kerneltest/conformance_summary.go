package kerneltest

import (
	"context"
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func summaries(b *bench) {
	web := kernel.Server{Key: kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: inet.TCP}, Scheduler: "rr", MaskBits: 32}
	dns, web6 := web, web
	dns.Key.Addr = netip.MustParseAddrPort("10.96.0.2:53")
	web6.Key.Addr, web6.MaskBits = netip.MustParseAddrPort("[fd00::1]:80"), 128
	set := kernel.Set{Name: SetPrefix + "A", Type: kernel.HashIP, Family: inet.IPv4, MaxElem: 16}
	member := func(ip string) kernel.Member {
		return kernel.Member{Set: set.Name, Element: kernel.Element{Addr: netip.MustParseAddr(ip)}}
	}
	b.must(ops(kernel.Create, web, dns, web6, set, member("10.96.0.1"), member("10.96.0.2"))...)
	b.must(op(kernel.Create, behind(web.Key, kernel.Destination{Addr: netip.MustParseAddrPort("10.244.0.1:8080"), Weight: 1})))
	b.sums(2, 2)

	b.must(op(kernel.Delete, dns), op(kernel.Delete, member("10.96.0.2")))
	b.sums(1, 1)
	if err := b.Admin.FlushSet(set.Name); err != nil {
		b.Fatal(err)
	}
	b.sums(1, 0)
	if b.Balanced {
		return
	}
	if err := b.Admin.ClearServers(); err != nil {
		b.Fatal(err)
	}
	b.sums(0, 0)
}

// sums checks two counts of a summary: the IPv4 virtual servers, and the members of the only set. Everything else must agree with a read.
func (b *bench) sums(servers, members int) {
	b.Helper()
	read := b.read()
	var keys []kernel.ServerKey
	for _, addr := range []string{"10.96.0.1:80", "10.96.0.2:53", "[fd00::1]:80"} {
		keys = append(keys, kernel.ServerKey{Addr: netip.MustParseAddrPort(addr), Protocol: inet.TCP})
	}
	s := b.summary(keys...)
	if s.IPv4Servers != servers {
		b.Errorf("%d virtual servers, want %d", s.IPv4Servers, servers)
	}
	for name, set := range s.Sets {
		if set.Members != members || set.Set != read.Sets[name] {
			b.Errorf("%d members in %s, want %d in %s", set.Members, set.Set, members, read.Sets[name])
		}
	}
	if len(s.Sets) != 1 || len(s.Servers) != len(read.Servers) {
		b.Errorf("the summary contains unexpected sets %v or virtual servers %v", s.Sets, s.Servers)
	}
	for key, server := range s.Servers {
		if !server.SameConfig(read.Servers[key]) {
			b.Errorf("%v, want %v", server, read.Servers[key])
		}
	}
	holds(b, "sysctls", read.Sysctls, s.Sysctls)
}

func (b *bench) summary(keys ...kernel.ServerKey) *kernel.Summary {
	b.Helper()
	s, err := b.Summarize(context.Background(), kernel.Sample{Servers: keys, All: true, Count: true})
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// A summary changes only if one of our rules, or a rule before our rules, is added or deleted.
func ruleSummaries(b *bench) {
	for _, family := range inet.Families {
		b.must(op(kernel.Ensure, typical(family, 1)))
	}
	before := b.summary().Rules
	same := func(what string) {
		b.Helper()
		holds(b, what, before, b.summary().Rules)
	}
	same("no writes")
	for _, family := range inet.Families {
		for _, id := range []kernel.ChainID{natChain, input, {Table: "mangle", Chain: "OUTPUT"}} {
			b.byAdmin(b.Admin.FlushChain(family, id))
			now := b.summary().Rules
			if now[family] == before[family] {
				b.Errorf("%s: the flush of %s was not detected", family, id)
			}
			before = now
			same("no writes")
		}
		b.byAdmin(b.Admin.AppendRule(family, filterChain, "-p", "tcp", "-j", "DROP"))
		if now := b.summary().Rules; now[family] == before[family] {
			b.Errorf("%s: a foreign rule in our chain was not detected", family)
		}
		before = b.summary().Rules
	}
}
