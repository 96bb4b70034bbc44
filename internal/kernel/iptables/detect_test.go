package iptables

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

func detect(t *testing.T) Detection {
	t.Helper()
	d, err := Detect(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// fakeCommands makes PATH contain only these shell scripts. The kernel seems to have a table of iptables-legacy.
func fakeCommands(t *testing.T, scripts map[string]string) {
	t.Helper()
	dir := t.TempDir()
	listTables(t, "filter\n")
	for name, script := range scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
}

// listTables sets which tables of iptables-legacy the kernel seems to have.
func listTables(t *testing.T, tables string) {
	t.Helper()
	list, before := filepath.Join(t.TempDir(), "tables"), legacyTables
	if err := os.WriteFile(list, []byte(tables), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { legacyTables = before })
	legacyTables = map[inet.Family]string{inet.IPv4: list, inet.IPv6: list}
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

// If a held lock counted as a missing family, the node would not serve the family until a restart.
func TestDetectDistinguishesALockFromAMissingFamily(t *testing.T) {
	scripts := family(Legacy, "", "")
	scripts["ip6tables-legacy-restore"] = "echo 'Another app is currently holding the xtables lock; still 0s 0us time ahead to have a chance to grab the lock...' >&2; exit 4"
	fakeCommands(t, scripts)
	if d, err := Detect(context.Background()); !errors.Is(err, ErrLocked) {
		t.Errorf("detected %+v, %v, want ErrLocked", d, err)
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
