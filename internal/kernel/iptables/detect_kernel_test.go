package iptables

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

func TestDetectFollowsKubelet(t *testing.T) {
	for _, tc := range []struct {
		Variant
		inet.Family
		hint string
	}{
		{NFT, inet.IPv6, hints[0]},
		{Legacy, inet.IPv4, hints[0]},
		{Legacy, inet.IPv6, hints[1]},
	} {
		t.Run(fmt.Sprint(tc), func(t *testing.T) {
			labtest.NetNSNoIPVS(t)
			tool, err := openTool(tc.Variant, tc.Family)
			if err != nil {
				t.Fatal(err)
			}
			if err := tool.NewChain("mangle", tc.hint); err != nil {
				t.Fatal(err)
			}
			d := detectHere(t)
			if d.Variant != tc.Variant || !strings.Contains(d.Why, tc.hint) {
				t.Errorf("detected %s because %q, want %s because of %s", d.Variant, d.Why, tc.Variant, tc.hint)
			}
		})
	}
}

func TestDetectLeavesNoTrace(t *testing.T) {
	labtest.NetNSNoIPVS(t)
	d := detectHere(t)
	if d.Variant != NFT || !slices.Equal(d.Families, inet.Families) {
		t.Fatalf("detected %+v, want nft with both families", d)
	}
	if !strings.HasPrefix(d.Version, "1.8.") {
		t.Errorf("detected version %s", d.Version)
	}
	if out, err := exec.Command("nft", "list", "ruleset").CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("nft list ruleset: %v\n%s", err, out)
	}
	for _, file := range []string{"ip_tables_names", "ip6_tables_names"} {
		tables, err := os.ReadFile("/proc/thread-self/net/" + file)
		if err == nil && len(tables) > 0 {
			t.Errorf("legacy tables are loaded: %s", tables)
		}
	}
}
