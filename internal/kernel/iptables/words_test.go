package iptables

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSplit(t *testing.T) {
	for line, want := range map[string][]string{
		"":          nil,
		"  a  b\tc": {"a", "b", "c"},
		`-m comment --comment "it\'s a \"q\" back\\slash" -j X`: {"-m", "comment", "--comment", `it's a "q" back\slash`, "-j", "X"},
		`"" x`:          {"", "x"},
		`a"b c"d`:       {"ab cd"},
		`"never closed`: {"never closed"},
		`back\slash`:    {`back\slash`},
	} {
		if diff := cmp.Diff(want, split(line)); diff != "" {
			t.Errorf("split(%q): -want +got\n%s", line, diff)
		}
	}
}

func FuzzQuoteSplit(f *testing.F) {
	f.Add("plain", "two words")
	f.Add(`quo"te`, `back\slash'`)
	f.Add("", "\\")
	f.Fuzz(func(t *testing.T, a, b string) {
		got := split(strings.Join([]string{quote(a), quote(b)}, " "))
		if diff := cmp.Diff([]string{a, b}, got); diff != "" {
			t.Fatalf("split(quote): -want +got\n%s", diff)
		}
	})
}
