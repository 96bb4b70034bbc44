package kerneltest

import (
	"context"
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func flow(key kernel.ServerKey, client int, endpoint string) kernel.Flow {
	f := kernel.Flow{Key: key, Client: netip.AddrPortFrom(ip4(1, client), 4000), Endpoint: netip.MustParseAddrPort(endpoint), OneWay: true}
	if key.Family() == inet.IPv6 {
		f.Client = netip.AddrPortFrom(ip6(1, client), 4000)
	}
	return f
}

func masqueraded(f kernel.Flow) kernel.Flow {
	f.Masqueraded = true
	return f
}

// The kernel has seen only the first packet of an unanswered TCP connection.
func unanswered(f kernel.Flow) kernel.Flow {
	f.Unanswered = true
	return f
}

func flows(b *bench) {
	dns, dns6 := key("10.96.0.10:53", inet.UDP), key("[fd00:10:96::a]:53", inet.UDP)
	association := key("10.96.0.10:53", inet.SCTP)
	all := map[kernel.Flow]bool{ // the value reports whether the flow's endpoint was deleted
		flow(dns, 1, "10.244.0.1:53"):                                          true,
		masqueraded(flow(dns, 2, "10.244.0.1:5353")):                           false,
		flow(dns, 3, "10.96.0.10:53"):                                          false,
		flow(key("10.96.0.10:54", inet.UDP), 4, "10.244.0.1:1"):                false,
		flow(dns6, 5, "[fd00:10:244::1]:53"):                                   true,
		flow(dns6, 6, "[fd00:10:244::2]:53"):                                   false,
		flow(association, 7, "10.244.0.1:53"):                                  true,
		unanswered(flow(tcp("10.96.0.10:53"), 8, "10.244.0.1:53")):             true,
		unanswered(flow(tcp("10.96.0.10:53"), 9, "10.244.0.2:53")):             false,
		unanswered(flow(tcp("[fd00:10:96::a]:53"), 10, "[fd00:10:244::1]:53")): true,
	}
	for f := range all {
		b.byAdmin(b.Admin.AddFlow(f))
	}
	// stale is not called for an answered TCP connection.
	b.byAdmin(b.Admin.AddFlow(flow(tcp("10.96.0.10:53"), 11, "10.244.0.1:53")))
	end := func(stale func(kernel.Flow) bool, protocols ...inet.Protocol) int {
		b.Helper()
		n, err := b.EndFlows(context.Background(), protocols, stale)
		if err != nil {
			b.Fatal(err)
		}
		return n
	}
	seen := func() map[kernel.Flow]bool {
		b.Helper()
		list := map[kernel.Flow]bool{}
		end(func(f kernel.Flow) bool { list[f] = all[f]; return false }, inet.TCP, inet.UDP, inet.SCTP)
		return list
	}
	gone := func(f kernel.Flow) bool { return all[f] }
	holds(b, "flows", all, seen())
	for _, step := range []struct {
		what      string
		protocols []inet.Protocol
		want      int
	}{
		{"no protocol", nil, 0},
		{"UDP", []inet.Protocol{inet.UDP}, 2},
		{"UDP again", []inet.Protocol{inet.UDP}, 0},
		{"UDP and SCTP", []inet.Protocol{inet.UDP, inet.SCTP}, 1},
		{"all", []inet.Protocol{inet.TCP, inet.UDP, inet.SCTP}, 2},
	} {
		if n := end(gone, step.protocols...); n != step.want {
			b.Errorf("%s: %d flows ended, want %d", step.what, n, step.want)
		}
	}
	for f, isGone := range all {
		if isGone {
			delete(all, f)
		}
	}
	holds(b, "flows left", all, seen())

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := b.EndFlows(ctx, []inet.Protocol{inet.UDP}, func(kernel.Flow) bool { return true }); err == nil {
		b.Error("EndFlows returned no error although the context was canceled")
	}
	holds(b, "flows after a canceled call", all, seen())
}
