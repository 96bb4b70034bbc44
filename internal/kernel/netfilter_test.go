package kernel

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSplitRule(t *testing.T) {
	for line, want := range map[string][]string{
		"":          nil,
		"  a  b\tc": {"a", "b", "c"},
		`-m comment --comment "it\'s a \"q\" back\\slash" -j X`: {"-m", "comment", "--comment", `it's a "q" back\slash`, "-j", "X"},
		`"" x`:          {"", "x"},
		`a"b c"d`:       {"ab cd"},
		`"never closed`: {"never closed"},
		`back\slash`:    {`back\slash`},
	} {
		if diff := cmp.Diff(want, SplitRule(line)); diff != "" {
			t.Errorf("SplitRule(%q): -want +got\n%s", line, diff)
		}
	}
}
