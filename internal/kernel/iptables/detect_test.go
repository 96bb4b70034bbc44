package iptables

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

func detectHere(t *testing.T) Detection {
	t.Helper()
	d, err := Detect(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// fakeCommands sets PATH to a directory with only these shell scripts. The kernel appears to have a table of each variant.
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

// listTables sets the tables that the kernel appears to have, for both variants.
func listTables(t *testing.T, tables string) {
	t.Helper()
	list, before, asked := filepath.Join(t.TempDir(), "tables"), legacyTables, inNFT
	if err := os.WriteFile(list, []byte(tables), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { legacyTables, inNFT = before, asked })
	legacyTables = map[inet.Family]string{inet.IPv4: list, inet.IPv6: list}
	inNFT = func(_ context.Context, _ inet.Family, objects []nftObject) ([]bool, error) {
		exist := make([]bool, len(objects))
		for i, o := range objects {
			exist[i] = o.chain == "" && slices.Contains(strings.Fields(tables), o.table)
		}
		return exist, nil
	}
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
	d := detectHere(t)
	if d.Variant != Legacy || !strings.Contains(d.Why, "nf_tables") {
		t.Errorf("detected %s because %q, want legacy because of nf_tables", d.Variant, d.Why)
	}
}

func TestDetectWithoutIPv6(t *testing.T) {
	scripts := family(Legacy, "", "")
	scripts["ip6tables-legacy-restore"] = "echo \"can't initialize ip6tables table \\`filter': Address family not supported by protocol\" >&2; exit 3"
	fakeCommands(t, scripts)
	d := detectHere(t)
	if !slices.Equal(d.Families, []inet.Family{inet.IPv4}) || d.Without[inet.IPv6] == nil {
		t.Errorf("detected %+v, want IPv4 only", d)
	}
}

// Programs that fail or hang for a few seconds at startup must not disable a family, or change the variant, until the next restart.
func TestDetectOutlastsFailures(t *testing.T) {
	for name, failing := range map[string]string{
		"locked":        "echo 'Another app is currently holding the xtables lock; still 0s 0us time ahead to have a chance to grab the lock...' >&2; exit 4",
		"no memory":     "echo 'iptables-restore v1.8.9: TABLE_ADD failed (Cannot allocate memory): table nat' >&2; exit 4",
		"killed":        "kill -9 $$",
		"no message":    "exit 1",
		"other message": "echo 'iptables-restore: line 1 failed' >&2; exit 1",
		"hung":          ">$PATH/hangs; exec /bin/sleep 60",
	} {
		t.Run(name, func(t *testing.T) {
			for _, v := range []Variant{NFT, Legacy} {
				scripts := family(v, "", "")
				scripts[v.command(inet.IPv6, "-restore")] = failing
				fakeCommands(t, scripts)
				if d := detectImpatiently(t); d.Variant != v || !slices.Equal(d.Families, inet.Families) || d.Unsure[inet.IPv6] == nil || d.Unsure[inet.IPv4] != nil {
					t.Errorf("detected %+v, want both families", d)
				}
			}
			scripts := family(NFT, failing, failing)
			for program, script := range family(Legacy, "", "") {
				scripts[program] = script
			}
			fakeCommands(t, scripts)
			if d := detectImpatiently(t); d.Variant != NFT || len(d.Unsure) != 2 || len(d.Without) > 0 {
				t.Errorf("detected %+v, want nft with both families", d)
			}
		})
	}
}

// detectImpatiently kills a program when the program creates the file "hangs".
func detectImpatiently(t *testing.T) Detection {
	t.Helper()
	limited, kill := context.WithCancel(t.Context())
	defer kill()
	go func() {
		for limited.Err() == nil {
			if os.Remove(filepath.Join(os.Getenv("PATH"), "hangs")) == nil {
				kill()
			}
			time.Sleep(time.Millisecond)
		}
	}()
	d, err := detect(t.Context(), limited)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDetectWhileLegacyFails(t *testing.T) {
	for tables, want := range map[string]Variant{"nat\nmangle\n": Legacy, "nat\n": NFT} {
		scripts := family(Legacy, "exit 1", "exit 1")
		for program, script := range family(NFT, "", "") {
			scripts[program] = script
		}
		fakeCommands(t, scripts)
		listTables(t, tables)
		if d := detectHere(t); d.Variant != want {
			t.Errorf("legacy tables %q: detected %+v, want %s", tables, d, want)
		}
	}
}

func TestDetectWhileOneFamilyFails(t *testing.T) {
	for _, failing := range inet.Families {
		for table, want := range map[string]Variant{"": NFT, ":" + hints[1] + " - [0:0]": Legacy} {
			scripts := family(NFT, "", "")
			maps.Copy(scripts, family(Legacy, "echo '*mangle'; echo '"+table+"'; echo COMMIT", ""))
			scripts[Legacy.command(failing, "-save")] = "exit 1"
			fakeCommands(t, scripts)
			listTables(t, "mangle\n")
			if d := detectHere(t); d.Variant != want {
				t.Errorf("%s fails and the other family has %q: detected %s because %q, want %s", failing, table, d.Variant, d.Why, want)
			}
		}
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

// Only an answer from the kernel proves that kubelet's chains are not in nftables.
func TestDetectWithoutAnAnswer(t *testing.T) {
	for _, kubelet := range []bool{false, true} {
		scripts, table := family(NFT, "", ""), ""
		if kubelet {
			table = ":" + hints[0] + " - [0:0]"
		}
		maps.Copy(scripts, family(Legacy, "echo '*mangle'; echo '"+table+"'; echo COMMIT", ""))
		fakeCommands(t, scripts)
		listTables(t, "mangle")
		inNFT = func(context.Context, inet.Family, []nftObject) ([]bool, error) { return nil, unix.ENOBUFS }
		d := detectHere(t)
		if kubelet && (d.Variant != Legacy || len(d.Unsure) > 0) {
			t.Errorf("detected %s because %q, unsure %v; want legacy because of %s", d.Variant, d.Why, d.Unsure, hints[0])
		}
		if !kubelet && (d.Variant != NFT || !errors.Is(d.Unsure[inet.IPv4], unix.ENOBUFS) || !slices.Equal(d.Families, inet.Families)) {
			t.Errorf("detected %s because %q, unsure %v; want an uncertain result", d.Variant, d.Why, d.Unsure)
		}
	}
}
