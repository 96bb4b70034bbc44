package scoreboard

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/e2e/conformance"
)

// PagePath is the path of the page, relative to the root of the repository.
const PagePath = "docs/scoreboard.md"

const introduction = `# Scoreboard

This page lists the faults that an agent has to survive, what it promises for each, and what was
measured. The tests are those of the test suite; a row names them. Times come from a small, shared
machine and vary with its load. "shortened" marks a measurement below the size that the promise asks
for. "passes" means that the tests passed, and their limits can be wider than the promise: compare
the figures with it. kube-proxy is version 1.36.3 in ipvs mode, with scheduler mh and without
conntrack limits, measured by the same test on the same node or taken from the [conformance
page](conformance.md#beside-kube-proxy).

This page is generated: ` + "`make scoreboard`" + ` measures the rows without a result and rewrites it;
` + "`make scoreboard ROWS=R4`" + ` measures one row again.

Not covered by any row: races between several CPUs inside the kernel, offloads of network cards, and
load balancers of clouds.

`

// Page renders docs/scoreboard.md.
func Page(results map[string]Result) string {
	var b strings.Builder
	b.WriteString(introduction)
	b.WriteString(summary(results))
	b.WriteString("\n| row | fault | promise | state | kube-ipvs | kube-proxy | tests | measured |\n|---|---|---|---|---|---|---|---|\n")
	for _, row := range Rows {
		r, ran := results[row.Name]
		cells := []string{row.Name, row.Title, row.Full, string(StateOf(row, results)), ours(row, r), theirs(row, r), tests(row), measured(r, ran)}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
	}
	return b.String()
}

// State is the verdict on a row.
type State string

// The verdicts.
const (
	Green     State = "passes"
	Shortened State = "passes, shortened"
	Red       State = "**fails**"
	Waiting   State = "not run yet"
	Uncovered State = "**not covered**"
)

var states = []State{Green, Shortened, Red, Waiting, Uncovered}

// StateOf returns the verdict on a row.
func StateOf(row Row, results map[string]Result) State {
	r, ran := results[row.Name]
	switch {
	case len(row.Probes) == 0:
		return Uncovered
	case !ran:
		return Waiting
	case len(r.Failed) > 0 || r.Passed == 0:
		return Red
	case r.Short || row.Missing != "":
		return Shortened
	}
	return Green
}

func summary(results map[string]Result) string {
	counts := map[State]int{}
	for _, row := range Rows {
		counts[StateOf(row, results)]++
	}
	var parts []string
	for _, s := range states {
		if counts[s] > 0 {
			parts = append(parts, fmt.Sprintf("%d: %s", counts[s], strings.Trim(string(s), "*")))
		}
	}
	return fmt.Sprintf("Of %d rows, %s.\n", len(Rows), strings.Join(parts, "; "))
}

func ours(row Row, r Result) string {
	lines := slices.Clone(r.Ours)
	if r.Passed > 0 {
		lines = append(lines, fmt.Sprintf("%d tests passed", r.Passed))
	}
	for _, name := range r.Failed {
		lines = append(lines, "failed: `"+name+"`")
	}
	if row.Missing != "" {
		lines = append(lines, "not measured: "+row.Missing)
	}
	return cell(lines)
}

func theirs(row Row, r Result) string {
	lines := slices.Clone(r.Peer)
	for _, c := range conformance.Contrasts {
		if c.Name == row.Contrast {
			lines = append(lines, fmt.Sprintf("%s: %s", c.Title, c.Theirs))
		}
	}
	if len(lines) == 0 && row.Peer != "" {
		lines = append(lines, row.Peer)
	}
	return cell(lines)
}

func tests(row Row) string {
	var names []string
	for _, p := range row.Probes {
		name := p.Tests
		if p.Kind == Fuzz {
			name = "every fuzz target"
		}
		names = append(names, fmt.Sprintf("%s `%s`", strings.TrimPrefix(p.Package, "./"), name))
	}
	return cell(names)
}

func measured(r Result, ran bool) string {
	if !ran {
		return ""
	}
	lines := []string{r.Date, fmt.Sprintf("%d s", r.Seconds), r.Version}
	if r.Kernel != "" {
		lines = append(lines, "kernel "+r.Kernel)
	}
	return cell(lines)
}

func cell(lines []string) string {
	return strings.ReplaceAll(strings.Join(lines, "<br>"), "|", `\|`)
}
