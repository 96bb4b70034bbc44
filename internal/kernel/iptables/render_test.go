package iptables

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func TestRender(t *testing.T) {
	r := testRuleset()
	stale := []kernel.SavedRule{{
		ChainID: kernel.ChainID{Table: "nat", Chain: "OUTPUT"},
		Spec:    `-m comment --comment "kube-ipvs:0123456789 old" -j KUBE-X`,
	}}
	tag := func(r kernel.Rule) string { return `-m comment --comment "` + r.Tag() }
	x, f := r.Chains[0].Rules, r.Chains[1].Rules
	want := "*filter\n" +
		":KUBE-F - [0:0]\n" +
		"-A KUBE-F " + tag(f[0]) + " no endpoint\" -j DROP\n" +
		"-I INPUT 1 " + tag(r.Jumps[3].Rule) + " filter\" -j KUBE-F\n" +
		"COMMIT\n" +
		"*nat\n" +
		":KUBE-X - [0:0]\n" +
		":KUBE-Y - [0:0]\n" +
		"-A KUBE-X " + tag(x[0]) + " a \\\"quoted\\\" reason\" -p tcp -j KUBE-Y\n" +
		"-A KUBE-X " + tag(x[1]) + " done\" -j RETURN\n" +
		"-D OUTPUT -m comment --comment \"kube-ipvs:0123456789 old\" -j KUBE-X\n" +
		"-I PREROUTING 1 " + tag(r.Jumps[1].Rule) + " more\" -j KUBE-Y\n" +
		"-I PREROUTING 1 " + tag(r.Jumps[0].Rule) + " Services\" -j KUBE-X\n" +
		"COMMIT\n"
	missing := []kernel.Jump{r.Jumps[0], r.Jumps[1], r.Jumps[3]}
	if diff := cmp.Diff(want, render(r, missing, stale)); diff != "" {
		t.Errorf("render: -want +got\n%s", diff)
	}
}
