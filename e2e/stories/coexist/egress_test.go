package coexist

import (
	"net/netip"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// TestPodEgress covers traffic from pods to addresses outside the cluster, not to Services.
func TestPodEgress(t *testing.T) {
	w := onWorld(t)
	world, excepted := w.Clients[0], w.Clients[1]
	for _, host := range []*cluster.Host{world, excepted, w.node2.Host} {
		host.Serve(t, cluster.TCP, 7000)
		host.Serve(t, cluster.UDP, 7000)
	}
	ask := func(t *testing.T, from *cluster.Host, to *cluster.Host, f cluster.Family, source netip.Addr) {
		t.Helper()
		for _, proto := range []cluster.Protocol{cluster.TCP, cluster.UDP} {
			if err := (path{from, proto, to.At(f, 7000), to.Name, source}).walk(); err != nil {
				t.Error(err)
			}
		}
	}
	t.Run("off, which is the default", func(t *testing.T) {
		for _, f := range both {
			ask(t, w.client.Host, world, f, w.client.Addr(f))
		}
	})
	t.Run("on, with exceptions", func(t *testing.T) {
		w.restartAgent(t, w.node1, "--masquerade-pod-egress",
			"--non-masquerade-cidrs", excepted.V4.String()+"/32,"+excepted.V6.String()+"/128")
		for _, f := range both {
			ask(t, w.client.Host, world, f, w.node1.Addr(f))
			ask(t, w.client.Host, excepted, f, w.client.Addr(f))
			ask(t, w.client.Host, w.node2.Host, f, w.node1.Addr(f))
			ask(t, w.node1.Host, world, f, w.node1.Addr(f))
			got := w.client.Get(t, cluster.TCP, w.far.At(f, http.target), slowly)
			if got.Source != w.client.Addr(f) {
				t.Errorf("pod to pod: web-2 saw %s, want %s", got.Source, w.client.Addr(f))
			}
		}
		w.mustPass(t, both...) // Services must reply from their own addresses, or clients would reject the replies
	})
}
