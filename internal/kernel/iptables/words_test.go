package iptables

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func FuzzQuoteSplit(f *testing.F) {
	f.Add("plain", "two words")
	f.Add(`quo"te`, `back\slash'`)
	f.Add("", "\\")
	f.Fuzz(func(t *testing.T, a, b string) {
		got := kernel.SplitRule(strings.Join([]string{quote(a), quote(b)}, " "))
		if diff := cmp.Diff([]string{a, b}, got); diff != "" {
			t.Fatalf("kernel.SplitRule(quote): -want +got\n%s", diff)
		}
	})
}
