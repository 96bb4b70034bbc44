package scoreboard

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/e2e/conformance"
	"github.com/kube-ipvs/kube-ipvs/e2e/record"
)

// PagePath is relative to the root of the repository.
const PagePath = "docs/scoreboard.md"

const introduction = `# Scoreboard

This page lists the faults that an agent has to survive, the promised behavior for each, and the
measured results. Each row names its tests, which are part of the test suite. Most rows come from a
[virtual clock](lab.md#a-virtual-clock), on which the work of programs takes no time; this is why
some costs are 0 s. Other times vary with the load of a small, shared machine. "passes, in part"
marks a row that is not measured completely. "passes" means that the tests passed; their limits can
be wider than the promise, so compare the figures with it. kube-proxy is version 1.36.3 in ipvs
mode, with scheduler mh, a minimum sync period of 2 s and no conntrack limits. Its results come from
the same test, on another node of the same virtual machine, or from the [conformance
page](conformance.md#beside-kube-proxy).

` + "`make scoreboard ROWS=R7`" + ` measures row R7; use the names of other rows likewise. Of many similar
results, the page shows the median and the worst. It is generated from the
[record](lab.md#long-tests): ` + "`make nightly`" + ` runs the tests, and ` + "`make nightly-record`" + ` rewrites
the page.

No row covers races between CPUs inside the kernel, network card offloads, or cloud load balancers.

`

// Page renders docs/scoreboard.md.
func Page(all []record.Test) string {
	var b strings.Builder
	b.WriteString(introduction)
	b.WriteString(summary(all))
	b.WriteString("\n| row | fault | promise | state | kube-ipvs | kube-proxy | tests | measured |\n|---|---|---|---|---|---|---|---|\n")
	for _, row := range Rows {
		found := row.results(all)
		cells := []string{row.Name, row.Title, row.Full, string(StateOf(row, all)), ours(row, found), theirs(row, found), tests(row), measured(found)}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
	}
	return b.String()
}

// Shows reports whether the page uses a result.
func Shows(t record.Test) bool {
	return slices.ContainsFunc(Rows, func(row Row) bool { return len(row.results([]record.Test{t})) > 0 })
}

func (row Row) results(all []record.Test) (found []record.Test) {
	for _, p := range row.Probes {
		found = append(found, p.results(all)...)
	}
	return found
}

// results returns the results of the probe's tests. It includes subtests that have figures and subtests that failed.
func (p Probe) results(all []record.Test) (found []record.Test) {
	name := regexp.MustCompile(p.Tests)
	for _, t := range all {
		parent, _, sub := strings.Cut(t.Test, "/")
		chosen := name.MatchString(t.Test)
		if sub && !chosen {
			chosen = name.MatchString(parent) && (len(t.Figures) > 0 || t.Status != "PASS")
		}
		if chosen && p.of(t.Package) && (p.Part == "" || p.Part == t.Part) {
			found = append(found, t)
		}
	}
	return found
}

func (p Probe) of(pkg string) bool {
	below, all := strings.CutSuffix(p.Package, "...")
	return pkg == p.Package || all && strings.HasPrefix(pkg, below)
}

// State is the verdict on a row.
type State string

// The verdicts.
const (
	Green     State = "passes"
	Partly    State = "passes, in part"
	Red       State = "**fails**"
	Waiting   State = "not run yet"
	Uncovered State = "**not covered**"
)

var states = []State{Green, Partly, Red, Waiting, Uncovered}

// StateOf returns the verdict on a row.
func StateOf(row Row, all []record.Test) State {
	if len(row.Probes) == 0 {
		return Uncovered
	}
	for _, t := range row.results(all) {
		if t.Status != "PASS" {
			return Red
		}
	}
	for _, p := range row.Probes {
		if len(p.results(all)) == 0 {
			return Waiting
		}
	}
	if row.Missing != "" {
		return Partly
	}
	return Green
}

func summary(all []record.Test) string {
	counts := map[State]int{}
	for _, row := range Rows {
		counts[StateOf(row, all)]++
	}
	var parts []string
	for _, s := range states {
		if counts[s] > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", strings.Trim(string(s), "*"), counts[s]))
		}
	}
	return fmt.Sprintf("Rows in each state, %d in total: %s.\n", len(Rows), strings.Join(parts, "; "))
}

// peerPrefix marks a figure of kube-proxy.
const peerPrefix = "kube-proxy: "

// figures returns the figures of kube-ipvs or kube-proxy, with the names of subtests.
func figures(found []record.Test, ofPeer bool) (lines []string) {
	var all []figure
	for _, t := range found {
		parent, sub, below := strings.Cut(t.Test, "/")
		name := parent
		if below {
			name = strings.ReplaceAll(sub, "_", " ")
		}
		for _, f := range t.Figures {
			if text, theirs := strings.CutPrefix(f, peerPrefix); theirs == ofPeer {
				all = append(all, figure{name, strings.TrimPrefix(text, "kube-ipvs: "), below})
			}
		}
	}
	return summarize(all)
}

func ours(row Row, found []record.Test) string {
	lines := figures(found, false)
	passed := 0
	for _, t := range found {
		if t.Status == "PASS" {
			passed++
		} else {
			lines = append(lines, "failed: `"+t.Test+"`")
		}
	}
	if passed > 0 {
		lines = append(lines, fmt.Sprintf("tests passed: %d", passed))
	}
	if row.Missing != "" {
		lines = append(lines, "not measured: "+row.Missing)
	}
	return cell(lines)
}

func theirs(row Row, found []record.Test) string {
	lines := figures(found, true)
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
		names = append(names, fmt.Sprintf("%s `%s`", p.Package, p.Tests))
	}
	return cell(names)
}

// measured describes the origin of the results.
func measured(found []record.Test) string {
	var lines []string
	for _, t := range found {
		lines = append(lines, t.Where())
	}
	slices.Sort(lines)
	return cell(slices.Compact(lines))
}

func cell(lines []string) string {
	return strings.ReplaceAll(strings.Join(lines, "<br>"), "|", `\|`)
}
