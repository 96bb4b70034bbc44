package record

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// runsTable lists the newest run of each part whose name has one of the prefixes.
type runsTable struct {
	name     string
	prefixes []string
	column   string
	version  func(*Line) string // the cell of that column
}

// runsTables contains the tables by page.
var runsTables = map[string]runsTable{
	"docs/kernel-support.md": {"kernels", []string{"kernel-", "stories-"}, "kernel", func(l *Line) string { return cmp.Or(l.Kernel, "none") }},
	"docs/compatibility.md":  {"kubernetes", []string{kubernetesParts}, "Kubernetes", (*Line).kubernetes},
}

// RunsPages lists the pages for WithRuns.
func RunsPages() (paths []string) {
	for path := range runsTables {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	return paths
}

// WithRuns fills the table of runs of the page at path.
func WithRuns(path, page string, lines []Line) (string, error) {
	t := runsTables[path]
	rows := fmt.Sprintf("| what ran | %s | result | time | commit, date |\n|---|---|---|---|---|\n", t.column)
	for _, age := range Ages(lines, func(string) int { return Unknown }) {
		if slices.ContainsFunc(t.prefixes, func(prefix string) bool { return strings.HasPrefix(age.Part.Name, prefix) }) {
			rows += t.row(age.Part, age.Line)
		}
	}
	return Fill(path, page, map[string]string{"table " + t.name: rows})
}

func (t runsTable) row(p Part, l *Line) string {
	if l == nil {
		return fmt.Sprintf("| %s | | has not run | | |\n", p.Proves)
	}
	result := fmt.Sprintf("%d passed", l.Passed)
	if l.State != Passed {
		result = fmt.Sprintf("%s: %d passed, %d failed", l.State, l.Passed, l.Failed)
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %.8s, %.10s |\n", p.Proves, t.version(l), result, time.Duration(l.Seconds)*time.Second, l.Commit, l.Date)
}
