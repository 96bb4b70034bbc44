package kernel

import (
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

func TestNamesOfKubeProxy(t *testing.T) {
	for name, want := range map[ChainID]bool{
		{"nat", "KUBE-SERVICES"}:                true,
		{"nat", "KUBE-SVC-NPX46M4PTMTKRN6Y"}:    true,
		{"nat", "KUBE-SEP-TT3IW56CI4FUGR3Q"}:    true,
		{"nat", "KUBE-EXT-TT3IW56CI4FUGR3Q"}:    true,
		{"filter", "KUBE-IPVS-OUT-FILTER"}:      true,
		{"mangle", "KUBE-PROXY-CANARY"}:         true,
		{"mangle", "KUBE-KUBELET-CANARY"}:       false,
		{"mangle", "KUBE-IPTABLES-HINT"}:        false,
		{"filter", "KUBE-FIREWALL"}:             false,
		{"nat", "KUBE-SVC-custom"}:              false,
		{"nat", "KUBE-SVC-npx46m4ptmtkrn6y"}:    false,
		{"filter", "KUBE-SVC-NPX46M4PTMTKRN6Y"}: false,
		{"filter", "KUBE-ROUTER-INPUT"}:         false,
		{"nat", "KUBE-HOSTPORTS"}:               false,
		{"nat", "KUBE-IPVS-CLUSTER-IP"}:         false,
	} {
		if got := name.OfKubeProxy(); got != want {
			t.Errorf("%s: %t, want %t", name, got, want)
		}
	}
	for name, want := range map[string]bool{
		"KUBE-CLUSTER-IP": true, "KUBE-6-CLUSTER-IP": true, "KUBE-LOAD-BALANCER-SOURCE-CIDR": true, "KUBE-6-LOAD-BALANCER-SOURCE-CID": true,
		"KUBE-6-LOAD-BALANCER-SOURCE-CIDR": false, "KUBE-SRC-6UDY3Y5D": false, "KIPVS-4-CLUSTER-IP": false, "KUBE-": false,
	} {
		if got := SetOfKubeProxy(name); got != want {
			t.Errorf("%s: %t, want %t", name, got, want)
		}
	}
}

func TestRemovalOfLeftovers(t *testing.T) {
	nat := ChainID{"nat", "PREROUTING"}
	for _, c := range []struct {
		object   Leftover
		is, does string
	}{
		{Leftover{Place: "nft", Family: inet.IPv4, ChainID: nat, Spec: "-j KUBE-SERVICES"},
			"iptables-nft -t nat -A PREROUTING -j KUBE-SERVICES", "iptables-nft -t nat -D PREROUTING -j KUBE-SERVICES"},
		{Leftover{Place: "legacy", Family: inet.IPv6, ChainID: ChainID{"nat", "KUBE-SERVICES"}},
			"ip6tables-legacy -t nat -N KUBE-SERVICES", "ip6tables-legacy -t nat -X KUBE-SERVICES"},
		{Leftover{Place: OldSets, Name: "KUBE-LOOP-BACK"}, "ipset KUBE-LOOP-BACK", "ipset destroy KUBE-LOOP-BACK"},
		{Leftover{Place: RulesNFTables, Family: inet.IPv6}, "nftables table ip6 kube-proxy", "nft delete table ip6 kube-proxy"},
	} {
		if op := (Op{Delete, c.object}); c.object.String() != c.is || op.String() != c.does {
			t.Errorf("%s; %s", c.object, op)
		}
	}
}
