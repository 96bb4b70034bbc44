package agent_test

import (
	"net/netip"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// These tests demonstrate the attacks that docs/threat-model.md lists as not stopped. If a test fails, the page is
// out of date.

// The agent looks up all new virtual servers in a single call. It applies no other change during that call.
func TestLookupsAreNotDivided(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.unwatched = true
		w.fake.OnOp(nil)
		w.put(compiletest.Service("large", "10.96.0.66", "10.244.0.1"))
		w.start()
		w.fake.TakeCounts()
		w.put(manyAddresses("10.244.0.1"))
		if c := w.fake.TakeCounts(); c.Lookups != 1 || c.LookedUp <= agent.MaxPart {
			t.Errorf("%d virtual servers in %d lookups", c.LookedUp, c.Lookups)
		}
	})
}

// A load balancer gives up an unused address of the node's network while the agent restarts. The address becomes the
// external IP of another Service. The new agent finds the address in use and accepts the claim. An agent that keeps
// running knows which Service had the address (TestNothingIsInheritedFromALoadBalancer).
func TestInheritedOverARestart(t *testing.T) {
	for restarts, served := range map[bool]bool{false: false, true: true} {
		calmBubble(t, func(w *world) {
			unused := netip.MustParseAddr("192.0.2.77")
			w.fake.SetNetwork(kernel.Network{
				netip.MustParseAddr("192.0.2.0"): {Kind: kernel.SubnetAddress, Subnet: netip.MustParsePrefix("192.0.2.0/24")},
			})
			balancer, heir := compiletest.Service("balancer", "10.96.0.1", "10.244.0.1"), compiletest.Service("heir", "10.96.0.2", "10.244.0.2")
			balancer.LoadBalancerIPs, heir.ExternalIPs = []netip.Addr{unused}, []netip.Addr{unused}
			w.put(balancer)
			w.start()
			w.put(heir)
			w.converged()
			if restarts {
				w.stop()
				w.services = services{heir.ID: heir}
				w.start()
			} else {
				w.remove("balancer")
			}
			w.sleep(auditInterval)
			if w.has("-A -t 192.0.2.77:80") != served {
				t.Errorf("restarts %v:\n%s", restarts, w.fake.Dump())
			}
		})
	}
}
