package explain_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// TestUnreadRoutes: no path is clear if one of its routes could not be looked up. Other routes do not matter.
func TestUnreadRoutes(t *testing.T) {
	at, endpoint, from := netip.MustParseAddr(clusterIP), netip.MustParseAddr(pod), netip.MustParseAddr(somePod)
	to := func(addr netip.Addr) func(*explain.Kernel) {
		return func(k *explain.Kernel) { delete(k.Routes, addr) }
	}
	of := func(a explain.Arrival) func(*explain.Kernel) {
		return func(k *explain.Kernel) { delete(k.Arrivals, a) }
	}
	for _, c := range []struct {
		name, from string
		mark       bool // rules mark the packets
		forget     func(*explain.Kernel)
		want       explain.Verdict
	}{
		{"route of another Service", somePod, true, to(netip.MustParseAddr("10.244.0.77")), explain.Passes},
		{"route of another Service, from the node", node, true, to(netip.MustParseAddr("10.244.0.77")), explain.Passes},
		{"route of another client, from the node", node, false, to(from), explain.Passes},
		{"the node's route to the Service", node, false, to(at), explain.Unclear},
		{"a pod's route to the Service", somePod, false, of(explain.Arrival{From: from, To: at}), explain.Unclear},
		{"route to an endpoint", somePod, false, to(endpoint), explain.Unclear},
		{"route to an endpoint, from the node", node, false, to(endpoint), explain.Unclear},
		{"route of marked packets to an endpoint", somePod, true, of(explain.Arrival{To: endpoint, Mark: 5}), explain.Unclear},
		{"route of replies", somePod, false, of(explain.Arrival{From: endpoint, To: from}), explain.Unclear},
		{"route to the client", somePod, false, to(from), explain.Unclear},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, web())
			w.ways("cni0")
			k := w.kernel
			k.Routes[at] = kernel.Route{Interface: "lo", Local: true}
			k.Arrivals = map[explain.Arrival]kernel.Route{{From: from, To: at}: k.Routes[at], {From: from, To: at, Mark: 5}: k.Routes[at]}
			for _, a := range []string{pod, otherPod} {
				addr := netip.MustParseAddr(a)
				k.Arrivals[explain.Arrival{From: addr, To: from}], k.Arrivals[explain.Arrival{To: addr, Mark: 5}] = k.Routes[from], k.Routes[addr]
			}
			if c.mark {
				k.Marks = []kernel.MarkRule{{Mark: 5, Mask: 0xf}}
				w.insert("mangle", "PREROUTING", "-j MARK --set-xmark 0x5/0xf")
				w.insert("mangle", "OUTPUT", "-j MARK --set-xmark 0x5/0xf")
			}
			c.forget(k)
			k.Unread = map[explain.Part]explain.Unread{explain.Routes: {Why: "no buffer space available"}}
			q := question(clusterIPHTTP, c.from)
			q.Interface = "cni0" // so it is known even if the route to the client is not
			e := explain.Explain(k, w.view, w.view.Base, q)
			if e.Verdict != c.want || says(e, fmt.Sprintf("could not read the %s of this node: no buffer space", explain.Routes)) != (c.want == explain.Unclear) {
				t.Errorf("want %s, got\n%s", c.want, steps(e))
			}
		})
	}
}
