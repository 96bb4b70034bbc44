package inspect

import (
	"errors"
	"strings"
	"testing"
	"unicode"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// TestCleanupTextIsPrintable: a rule of another program cannot change what the terminal shows.
func TestCleanupTextIsPrintable(t *testing.T) {
	const hostile = "\x1b[2K\x1b]0;nothing\a\r\n"
	var out, notes strings.Builder
	op := kernel.Op{Verb: kernel.Delete, Object: kernel.Set{Name: "KUBE" + hostile}}
	c := NewCleanup(true, &out, &notes)
	c.FoundLeftovers(diff.Plan{Phases: []diff.Phase{{Name: "sets", Ops: []kernel.Op{op}}}}, kernel.IPVSWithIPTables, nil, nil, []string{"a rule " + hostile})
	c.Did(op, nil)
	c.Did(op, errors.New(hostile))
	for _, text := range []string{out.String(), notes.String()} {
		if strings.ContainsFunc(text, func(r rune) bool { return unicode.IsControl(r) && r != '\n' }) || strings.Count(text, "\n") > 3 {
			t.Errorf("%q", text)
		}
	}
}
