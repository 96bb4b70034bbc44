//go:build linux

package daemon

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/preflight"
)

func TestReadNumber(t *testing.T) {
	file := filepath.Join(t.TempDir(), "nf_conntrack_count")
	if n := readNumber(file); n != nil {
		t.Errorf("readNumber of a missing file = %d, want nil", *n)
	}
	for text, want := range map[string]uint64{"241011\n": 241011, "0\n": 0} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if n := readNumber(file); n == nil || *n != want {
			t.Errorf("%q: %v, want %d", text, n, want)
		}
	}
}

// After a switch to nftables, old virtual servers stay in the kernel, but IPVS's connection table is not reported.
func TestNoIPVSTableWhereNFTablesBalances(t *testing.T) {
	got := (&tables{nodes: newNodes(&Node{Choice: preflight.Choice{Mode: kernel.NFTablesOnly}})}).read()
	if got.Connections != nil || got.Buckets != nil {
		t.Errorf("%+v", got)
	}
}
