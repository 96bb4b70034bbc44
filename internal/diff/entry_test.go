package diff

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func pods(family string, n int) []kernel.Destination {
	ds := make([]kernel.Destination, n)
	for i := range ds {
		addr := map[string]string{"IPv4": fmt.Sprintf("10.244.1.%d", i+1), "IPv6": fmt.Sprintf("fd00:10:244:1::%x", i+1)}[family]
		ds[i] = kernel.Destination{Addr: netip.AddrPortFrom(netip.MustParseAddr(addr), 8080), Weight: 1}
	}
	return ds
}

func inEntryOrder(scheduler, seed string, ds []kernel.Destination) []kernel.Destination {
	new(entryOrder).sort(scheduler, seed, ds)
	return ds
}

// Nodes start with different endpoints: across many nodes, each endpoint comes first about equally often. The kernel starts with the
// endpoint added last.
func TestNodesBeginAtDifferentEndpoints(t *testing.T) {
	const nodes, endpoints = 1000, 10
	for _, family := range []string{"IPv4", "IPv6"} {
		first := map[netip.AddrPort]int{}
		for node := range nodes {
			ds := inEntryOrder("rr", fmt.Sprintf("node-%d", node), pods(family, endpoints))
			first[ds[endpoints-1].Addr]++
		}
		for _, d := range pods(family, endpoints) {
			if n := first[d.Addr]; n < nodes/endpoints/2 || n > nodes/endpoints*2 {
				t.Errorf("%s: %s comes first on %d of %d nodes", family, d.Addr, n, nodes)
			}
		}
	}
}

// I2: the order depends only on the node and the endpoints.
func TestEntryOrderIsStable(t *testing.T) {
	shuffled := pods("IPv4", 10)
	slices.Reverse(shuffled)
	a, b := inEntryOrder("wlc", "node-1", pods("IPv4", 10)), inEntryOrder("wlc", "node-1", shuffled)
	if !slices.Equal(a, b) {
		t.Errorf("%v, then %v", a, b)
	}
}

// Hashing schedulers get the same order on every node; otherwise nodes would choose different endpoints.
func TestHashesHaveOneOrder(t *testing.T) {
	for _, scheduler := range []string{"sh", "mh", "dh"} {
		if a := inEntryOrder(scheduler, "node-1", pods("IPv4", 10)); !slices.Equal(a, pods("IPv4", 10)) {
			t.Errorf("%s: %v", scheduler, a)
		}
	}
}
