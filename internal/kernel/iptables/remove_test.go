package iptables

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func TestRemovalSparesChainsInUse(t *testing.T) {
	got := parse(t, `*nat
:PREROUTING ACCEPT [0:0]
:KUBE-X - [0:0]
:KUBE-Y - [0:0]
-A PREROUTING -m comment --comment "kube-ipvs:aaaaaaaaaa Services" -j KUBE-X
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-Y
-A KUBE-X -m comment --comment "kube-ipvs:bbbbbbbbbb ours" -j KUBE-Y
-A KUBE-X -m comment --comment foreign -j RETURN
-A KUBE-Y -m comment --comment "kube-ipvs:cccccccccc ours" -j RETURN
COMMIT
*filter
:KUBE-F - [0:0]
-A KUBE-F -m comment --comment "kube-ipvs:dddddddddd ours" -j RETURN
COMMIT
`).removal(ourNames)
	want := removal{
		rules: []kernel.SavedRule{
			{ChainID: kernel.ChainID{Table: "nat", Chain: "PREROUTING"}, Spec: `-m comment --comment "kube-ipvs:aaaaaaaaaa Services" -j KUBE-X`},
			{ChainID: chainX, Spec: `-m comment --comment "kube-ipvs:bbbbbbbbbb ours" -j KUBE-Y`},
		},
		empty: []kernel.ChainID{chainF, chainY},
		drop:  []kernel.ChainID{chainF},
	}
	byName := cmpopts.SortSlices(func(a, b kernel.ChainID) bool { return a.String() < b.String() })
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(removal{}), byName); diff != "" {
		t.Errorf("removal: -want +got\n%s", diff)
	}
}
