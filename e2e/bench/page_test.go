package bench

import (
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/record"
)

// Results from before a cost was measured stay on the page.
func TestPacketCells(t *testing.T) {
	for want, got := range map[string]string{
		"49.3 (0.71, 0.81)": packet(49_300, 35_000, 40_000),
		"49.3 (0.71, –)":    packet(49_300, 35_000, 0),
		"not measured":      packet(0, 35_000, 40_000),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestReached(t *testing.T) {
	for want, got := range map[string]string{
		"2.83":                    reached(2.83, &Start{Limit: 300, Probed: 40, Usable: 40}),
		"not within 300: 0 of 40": reached(0, &Start{Limit: 300, Probed: 40}),
		"not within 600":          reached(0, &Start{Limit: 600}),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestChanged: a row is marked if a measurement today would measure another program.
func TestChanged(t *testing.T) {
	now := Now{Source: "b", Versions: map[string]string{"kube-proxy": "1.37.0"}}
	for _, c := range []struct {
		source, program, version string
		want                     bool
	}{
		{"b", "kube-ipvs", "dev", false},
		{"a", "kube-ipvs nftables", "dev", true},
		{"", "kube-ipvs", "dev", true}, // recorded before the digest was
		{"a", "kube-proxy ipvs", "1.37.0", false},
		{"b", "kube-proxy ipvs", "1.36.3", true},
		{"a", aloneProgram, "", false},
	} {
		if got := now.changed(record.Test{Source: c.source}, Result{Program: c.program, Version: c.version}); got != c.want {
			t.Errorf("%+v: marked: %v", c, got)
		}
	}
}
