package differential

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-ipvs/kube-ipvs/e2e/differential/judge"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// TestDataPlanes compares an agent with IPVS and one with nftables. Differences must be listed in
// docs/data-planes.md.
func TestDataPlanes(t *testing.T) {
	labtest.Need(t)
	runOn(t, newStage(t, true))
}

// planeBugs ignores draining endpoints. Only IPVS counts their connections, so only an agent with IPVS keeps them.
func planeBugs(items []judge.Item, tally *judge.Tally) (bugs []judge.Bug) {
	for _, i := range items {
		if i.Kind == judge.Draining {
			continue
		}
		tally.Compared[i.Kind]++
		if !alikeOnPlanes(i) {
			bugs = append(bugs, judge.Bug{Item: i})
		}
	}
	return bugs
}

func alikeOnPlanes(i judge.Item) bool {
	ipvs, nftables := i.KubeProxy, i.Ours
	switch i.Kind {
	case judge.VirtualServer:
		return ipvs.Server != nil && nftables.Server != nil && slices.Equal(ipvs.Server.Serving(), nftables.Server.Serving())
	case judge.Connection:
		return ipvs.Reach.Equal(nftables.Reach) || failsOtherwise(i)
	}
	return ipvs.There == nftables.There
}

// failsOtherwise reports whether the only difference is the error that a process on the node gets for a port without
// endpoints.
func failsOtherwise(i judge.Item) bool {
	answered := i.KubeProxy.Reach.Outcome == judge.Answered || i.Ours.Reach.Outcome == judge.Answered
	return !answered && i.Client == judge.Host && i.Key.Protocol != corev1.ProtocolTCP
}
