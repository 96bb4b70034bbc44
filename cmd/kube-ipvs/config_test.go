//go:build linux

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestConfigView: view merges a file and flags, and shows the origin of each setting.
func TestConfigView(t *testing.T) {
	args := []string{"config", "view", "--config", "testdata/config/kube-proxy.yaml", "--ipvs-scheduler", "wlc", "-v4"}
	out, stderr, status := call(t, args...)
	if status != 0 {
		t.Fatalf("status %d, stderr %q", status, stderr)
	}
	golden(t, "config/view.golden", out)
	golden(t, "config/warnings.golden", stderr)

	out, _, status = call(t, append(args, "-o", "json")...)
	if status != 0 || !json.Valid([]byte(out)) {
		t.Fatalf("status %d, output %s", status, out)
	}
	golden(t, "config/view.json.golden", out)
}

// TestConfigConvert: the output of convert is valid, causes no warnings, and does not change if it is converted again.
func TestConfigConvert(t *testing.T) {
	for format, file := range map[string]string{"yaml": "config/convert.golden", "json": "config/convert.json.golden"} {
		out, stderr, status := call(t, "config", "convert", "testdata/config/kube-proxy.yaml", "-o", format)
		if status != 0 {
			t.Fatalf("status %d, stderr %q", status, stderr)
		}
		golden(t, file, out)
		golden(t, "config/warnings.golden", stderr)

		converted := filepath.Join(t.TempDir(), "converted")
		if err := os.WriteFile(converted, []byte(out), 0o600); err != nil {
			t.Fatal(err)
		}
		again, stderr, status := call(t, "config", "convert", converted, "-o", format)
		if again != out || stderr != "" || status != 0 {
			t.Errorf("again: status %d, stderr %q, output\n%s", status, stderr, again)
		}
	}
}

func TestConfigValidate(t *testing.T) {
	out, stderr, status := call(t, "config", "validate", "--config", "testdata/config/kube-proxy.yaml")
	if out != "the configuration is valid\n" || status != 0 {
		t.Errorf("status %d, output %q", status, out)
	}
	golden(t, "config/warnings.golden", stderr)

	args := []string{"config", "validate", "--config", "testdata/config/bad.yaml", "--ipvs-sync-period", "0"}
	out, stderr, status = call(t, args...)
	if out != "" || status != 1 {
		t.Errorf("status %d, want 1; output %q", status, out)
	}
	golden(t, "config/bad.golden", stderr)

	out, _, status = call(t, append(args, "-o", "json")...)
	var v verdict
	if err := json.Unmarshal([]byte(out), &v); err != nil || status != 1 || v.Valid || len(v.Errors) != 3 {
		t.Errorf("status %d, %v, output %s", status, err, out)
	}
}

func TestBadConfigIsRejected(t *testing.T) {
	for _, args := range [][]string{
		{"run", "--manifests", "testdata/web"}, {"plan", "-f", "testdata/web"}, {"preflight"},
	} {
		out, stderr, status := call(t, append(args, "--config", "testdata/config/bad.yaml")...)
		if status != 2 || out != "" || !strings.Contains(stderr, `bad.yaml:4: ipvs.scheduler "fastest"`) {
			t.Errorf("%s: status %d, output %q, stderr %q", args[0], status, out, stderr)
		}
	}
}
