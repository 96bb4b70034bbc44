package explain_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/explain"
)

// TestPrint: the verdict comes first, then the reasons, then the path with its stops marked.
func TestPrint(t *testing.T) {
	e := explain.Explanation{
		Address: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: "tcp", From: "198.51.100.7", Service: "default/web", Kind: "ClusterIP",
		Verdict: explain.Depends, Reasons: []string{"the set KIPVS-4-HAIRPIN is missing"},
		Steps: []explain.Step{
			{At: "address", Object: "ip addr 10.96.0.1/32 dev kube-ipvs0", Message: "local to this node", Verdict: explain.Passes},
			{At: "filter INPUT", Object: "-A INPUT -i eth9 -j DROP", Message: "dropped", Verdict: explain.Depends},
			{At: "filter OUTPUT", Object: "-A OUTPUT -j DROP", Message: "dropped", Verdict: explain.Stops},
		},
		Endpoints: []explain.Endpoint{
			{Address: netip.MustParseAddrPort("10.244.0.1:8080"), Pod: "default/web-1", Node: "node-1", Weight: 3, Source: "the client"},
			{Address: netip.MustParseAddrPort("10.244.0.2:8080"), Weight: 1, Source: "this node"},
		},
	}
	const want = `10.96.0.1:80/tcp (ClusterIP of Service default/web) from 198.51.100.7: works for some clients only
  ! the set KIPVS-4-HAIRPIN is missing

Path of the first packet of a new connection:
  1. address: local to this node
       ip addr 10.96.0.1/32 dev kube-ipvs0
  2. filter INPUT: DEPENDS: dropped
       -A INPUT -i eth9 -j DROP
  3. filter OUTPUT: STOPS: dropped
       -A OUTPUT -j DROP

Eligible endpoints:
  10.244.0.1:8080 weight 3, pod default/web-1, node node-1; source address: the client
  10.244.0.2:8080 weight 1; source address: this node
`
	if d := cmp.Diff(want, steps(e)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}
