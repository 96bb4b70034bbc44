package schedulers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// measured collects the tests' measurements.
var measured strings.Builder

func record(t *testing.T, format string, args ...any) {
	t.Helper()
	line := fmt.Sprintf(format, args...)
	t.Log(line)
	measured.WriteString(line + "\n")
}

// plot adds a bar chart to the measurements, with one bar per backend.
func plot(t *testing.T, title string, c counts, backends []*backend) {
	t.Helper()
	const width = 50
	record(t, "%s (%d connections)", title, c.total())
	for _, b := range backends {
		record(t, "  %-4s %-*s %5.1f %%", b.name, width, strings.Repeat("█", int(c.share(b.name)*width/100+0.5)), c.share(b.name))
	}
	record(t, "")
}

func writeMeasured() error {
	out := os.Getenv("LAB_OUT")
	if out == "" || measured.Len() == 0 {
		return nil
	}
	return os.WriteFile(filepath.Join(out, "measured.md"), []byte(measured.String()), 0o644)
}

func (w *world) bothFamilies(t *testing.T, story func(t *testing.T, f cluster.Family)) {
	for _, f := range w.FamilyList() {
		t.Run(f.String(), func(t *testing.T) { story(t, f) })
	}
}
