package guides

import (
	"strings"
	"testing"
)

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		shown, output string
		same          bool
	}{
		{"a 1", "a   1\n", true},
		{"a 1", "a 2\n", false},
		{"a 1", "a 1\nb\n", false},
		{"a ... c", "a b b c\n", true},
		{"a\n...\nd", "a\nb\nc\nd\n", true},
		{"a\n...\nd", "a\nd\n", true},
		{"a\n...", "a\nb\n", true},
		{"...\nb", "a\nc\n", false},
		{"since 3m ago", "since 1h4m5.3s ago\n", true},
		{"3 Services", "4 Services\n", false},
		{"Server version 1.2.1 (size=4096)", "Server version 1.2.1 (size=256)\n", true},
		{"at 2026-01-02T03:04:05Z", "at 2027-11-12T13:14:15+02:00\n", true},
		{"a.c", "abc\n", false},
		{"", "anything\n", true},
	} {
		if err := Match(strings.Split(c.shown, "\n"), c.output); (err == nil) != c.same {
			t.Errorf("%q and %q: %v", c.shown, c.output, err)
		}
	}
}
