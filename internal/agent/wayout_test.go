package agent_test

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
)

// An agent that starts while the API server's address is on kube-ipvs0 releases only that address. It first waits for
// the source.
func TestWayOut(t *testing.T) {
	const external, other = "203.0.113.1", "203.0.113.2"
	at := func(addr string) []netip.AddrPort { return []netip.AddrPort{netip.MustParseAddrPort(addr + ":80")} }
	nameserver := kernel.Network{netip.MustParseAddr(external): {Kind: kernel.Nameserver}}
	for name, test := range map[string]struct {
		contacts []netip.AddrPort
		network  kernel.Network
		damage   func(*kerneltest.Fake) error
		released bool
	}{
		"the API server":                 {contacts: at(external), released: true},
		"a nameserver without an answer": {network: nameserver, released: true},
		"a nameserver that answers":      {network: nameserver, contacts: at("198.51.100.1")},
		"no nameserver":                  {network: kernel.Network{netip.MustParseAddr(external): {Kind: kernel.Gateway}}},
		"the API server's ClusterIP":     {contacts: at("10.96.0.1")},
		"not ours": {contacts: at(external), damage: func(f *kerneltest.Fake) error {
			return errors.Join(f.FlushSet("KIPVS-4-VIP"), f.FlushSet("KIPVS-4-LEDGER"))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(w *world) {
				w.unwatched = true
				svc := balanced(web("10.244.0.1"), other)
				svc.ExternalIPs = []netip.Addr{netip.MustParseAddr(external)}
				w.put(svc, compiletest.Service("other", "10.96.0.2", "10.244.0.1"))
				w.start()
				w.converged()
				w.stop()
				if test.damage != nil {
					w.damage(test.damage)
				}
				w.faults = kerneltest.DefaultFaults(7)
				w.fake.SetFaults(w.faults)
				w.fake.OnOp(nil) // I7 would require removing the set entries, too
				w.fake.SetNetwork(test.network)
				w.config.Contacts = func() []netip.AddrPort { return test.contacts }
				before := w.fake.Dump()
				w.startUnsynced()
				if w.sleep(4 * time.Second); w.fake.Dump() != before {
					t.Error("the agent wrote while the source could still respond")
				}
				w.sleep(time.Minute)
				for line, want := range map[string]bool{
					"ip addr add " + external: !test.released, "ipvsadm -A -t " + external: !test.released,
					"ip addr add " + other: true, "ipvsadm -A -t " + other: true, "ip addr add 10.96.0.1": true, "ipvsadm -A -t 10.96.0.1": true,
				} {
					if w.has(line) != want {
						t.Errorf("%q exists: %t", line, !want)
					}
				}
				if !test.released && w.fake.Dump() != before {
					t.Error("the agent wrote although no address blocked the way")
				}
			})
		})
	}
}

// The API server has moved to an address of a Service in the snapshot. The agent must not serve that address.
func TestSnapshotLeavesTheWayOut(t *testing.T) {
	const external = "203.0.113.1"
	for name, after := range map[string]time.Duration{"before it is served": 0, "after it is served": time.Minute} {
		t.Run(name, func(t *testing.T) {
			calmBubble(t, func(w *world) {
				w.unwatched = true
				svc := web("10.244.0.1")
				svc.ExternalIPs = []netip.Addr{netip.MustParseAddr(external)}
				w.remember(all(svc))
				moves := time.Now().Add(after)
				w.config.Contacts = func() []netip.AddrPort {
					if time.Now().Before(moves) {
						return []netip.AddrPort{netip.MustParseAddrPort("198.51.100.1:6443")}
					}
					return []netip.AddrPort{netip.MustParseAddrPort(external + ":6443")}
				}
				w.fake.OnOp(nil) // releasing an address ignores the order that I7 requires
				w.startUnsynced()
				w.sleep(after + 30*time.Second)
				if !w.has("ipvsadm -A -t 10.96.0.1:80") || w.has("ip addr add "+external) {
					t.Errorf("kernel:\n%s", w.fake.Dump())
				}
			})
		})
	}
}
