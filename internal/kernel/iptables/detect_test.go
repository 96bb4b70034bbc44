package iptables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/labtest"
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
			d := detect(t)
			if d.Variant != tc.Variant || !strings.Contains(d.Why, tc.hint) {
				t.Errorf("detected %s because %q, want %s because of %s", d.Variant, d.Why, tc.Variant, tc.hint)
			}
		})
	}
}

func detect(t *testing.T) Detection {
	t.Helper()
	d, err := Detect(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDetectLeavesNoTrace(t *testing.T) {
	labtest.NetNSNoIPVS(t)
	d := detect(t)
	if d.Variant != NFT || !slices.Equal(d.Families, inet.Families) {
		t.Fatalf("detected %+v, want nft with both families", d)
	}
	if !d.RandomFully || !strings.HasPrefix(d.Version, "1.8.") {
		t.Errorf("detected version %s, random-fully %t", d.Version, d.RandomFully)
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

// fakeCommands leaves nothing but these shell scripts in PATH.
func fakeCommands(t *testing.T, scripts map[string]string) {
	t.Helper()
	dir := t.TempDir()
	for name, script := range scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
}

func family(v Variant, save, restore string) map[string]string {
	version := map[Variant]string{NFT: "nf_tables", Legacy: "legacy"}[v]
	scripts := map[string]string{}
	for _, f := range inet.Families {
		scripts[v.command(f, "")] = "echo 'iptables v1.8.7 (" + version + ")'"
		scripts[v.command(f, "-save")] = save
		scripts[v.command(f, "-restore")] = restore
	}
	return scripts
}

func TestDetectWithoutTools(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := Detect(context.Background())
	if err == nil || !strings.Contains(err.Error(), "install package iptables") {
		t.Errorf("error %v does not name the package", err)
	}
}

func TestDetectFallsBackToLegacy(t *testing.T) {
	scripts := family(NFT, "", "echo 'line 1: TABLE_ADD failed (Operation not supported): table filter' >&2; exit 4")
	for name, script := range family(Legacy, "", "") {
		scripts[name] = script
	}
	fakeCommands(t, scripts)
	d := detect(t)
	if d.Variant != Legacy || !strings.Contains(d.Why, "nf_tables") {
		t.Errorf("detected %s because %q, want legacy because of nf_tables", d.Variant, d.Why)
	}
}

func TestDetectWithoutIPv6(t *testing.T) {
	scripts := family(Legacy, "", "")
	scripts["ip6tables-legacy-restore"] = "echo \"can't initialize ip6tables table \\`filter': Address family not supported by protocol\" >&2; exit 3"
	fakeCommands(t, scripts)
	d := detect(t)
	if !slices.Equal(d.Families, []inet.Family{inet.IPv4}) || d.Without[inet.IPv6] == nil {
		t.Errorf("detected %+v, want IPv4 only", d)
	}
}

// To take a lock that is held for "this family does not work" would leave the node without it until the next start.
func TestDetectDoesNotTakeALockForAMissingFamily(t *testing.T) {
	scripts := family(Legacy, "", "")
	scripts["ip6tables-legacy-restore"] = "echo 'Another app is currently holding the xtables lock; still 0s 0us time ahead to have a chance to grab the lock...' >&2; exit 4"
	fakeCommands(t, scripts)
	if d, err := Detect(context.Background()); !errors.Is(err, errLocked) {
		t.Errorf("detected %+v, %v, want errLocked", d, err)
	}
}

func TestDetectStopsWhenAsked(t *testing.T) {
	fakeCommands(t, family(NFT, "", ""))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if d, err := Detect(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("detected %+v, %v, want context.Canceled", d, err)
	}
}
