package iptables

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func TestListing(t *testing.T) {
	text := `*raw
:PREROUTING ACCEPT [0:0]
-A PREROUTING -j NOTRACK
COMMIT
*filter
:INPUT DROP [12:345]
:KUBE-IPVS-FILTER - [0:0]
:EMPTY - [0:0]
-A INPUT -m comment --comment "kube-ipvs:0123456789 ports" -j KUBE-IPVS-FILTER
-A INPUT -i lo -j ACCEPT
-A INPUT -j TARGETOFAPLUGIN
-A INPUT -g EMPTY
-A KUBE-IPVS-FILTER -j RETURN
COMMIT
`
	s, err := parseSave(text, map[string]bool{"filter": true})
	if err != nil {
		t.Fatal(err)
	}
	id := func(chain string) kernel.ChainID { return kernel.ChainID{Table: "filter", Chain: chain} }
	got := s.listing()
	if d := cmp.Diff(map[kernel.ChainID][]kernel.SavedRule{
		id("INPUT"): {
			{
				ChainID: id("INPUT"), Spec: `-m comment --comment "kube-ipvs:0123456789 ports" -j KUBE-IPVS-FILTER`,
				Rule: kernel.Rule{Why: "ports", Verdict: kernel.JumpTo("KUBE-IPVS-FILTER")}, Tag: "kube-ipvs:0123456789",
			},
			{
				ChainID: id("INPUT"), Spec: "-i lo -j ACCEPT",
				Rule: kernel.Rule{Conditions: []kernel.Condition{kernel.Arrives{Interface: "lo"}}, Verdict: kernel.Accept},
			},
			{ChainID: id("INPUT"), Spec: "-j TARGETOFAPLUGIN", Rule: kernel.Rule{Verdict: kernel.OtherTarget("TARGETOFAPLUGIN")}},
			{ChainID: id("INPUT"), Spec: "-g EMPTY", Rule: kernel.Rule{Verdict: kernel.GoTo("EMPTY")}},
		},
		id("KUBE-IPVS-FILTER"): {{ChainID: id("KUBE-IPVS-FILTER"), Spec: "-j RETURN", Rule: kernel.Rule{Verdict: kernel.Return}}},
		id("EMPTY"):            nil,
	}, got.Rules); d != "" {
		t.Error(d)
	}
	if policy := got.Policies[id("INPUT")]; policy != "DROP" {
		t.Errorf("the policy of INPUT is %q", policy)
	}
	if _, has := got.Policies[id("EMPTY")]; has {
		t.Error("a chain that is not built in has a policy")
	}
	if text := got.Rules[id("INPUT")][1].String(); text != "-t filter -A INPUT -i lo -j ACCEPT" {
		t.Error(text)
	}
}
