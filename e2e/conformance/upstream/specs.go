// Package upstream runs Kubernetes' own end-to-end tests in a cluster with real kubelets, and records their results.
package upstream

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/e2e/record"
)

// Package is the name of these tests in the record.
const Package = "kubernetes"

// AnnounceKernel is a shell command that prints the kernel's version for Follow.
const AnnounceKernel = `echo "kernel $LAB_KERNEL in $LAB_MODE"`

var announced = regexp.MustCompile(`^kernel (\S+) in (.+)`)

var (
	separator = regexp.MustCompile(`^-{20,}$`)
	// verdict matches the line after a spec's output. If it contains no word, the spec passed.
	verdict = regexp.MustCompile(`^[•SP](?: \[([A-Z]+)[^\]]*\])? \[([0-9.]+) seconds\]`)
	// explained matches the next line, which contains the reason.
	explained = regexp.MustCompile(`^\s+\[(?:SKIPPED|FAILED)\] (.*)`)
	// label matches one of the labels after a spec's name.
	label = regexp.MustCompile(` \[[^\]]*\]$`)
)

// Listed returns the matching specs in the output of "e2e.test --list-tests".
func Listed(output string, focus, skip *regexp.Regexp) (names []string) {
	for line := range strings.Lines(output) {
		_, name, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if ok && strings.HasPrefix(name, "[") && focus.MatchString(name) && !skip.MatchString(name) {
			names = append(names, name)
		}
	}
	return names
}

// Follow reads the output of e2e.test for specs. It calls found with each outcome as soon as the reason is known.
func Follow(output io.Reader, specs []string, found func(record.Test)) error {
	known := map[string]bool{}
	for _, spec := range specs {
		known[spec] = true
	}
	lines := bufio.NewScanner(output)
	lines.Buffer(nil, 1<<20) // one line contains a letter for each skipped spec
	var (
		kernel, lab, spec string
		first             bool // the next line contains a spec's name
		last              *record.Test
	)
	finish := func() {
		if last != nil {
			found(*last)
			last = nil
		}
	}
	for lines.Scan() {
		line := strings.TrimRight(lines.Text(), " ")
		if match := announced.FindStringSubmatch(line); match != nil && kernel == "" {
			kernel, lab = match[1], match[2]
		}
		if separator.MatchString(line) {
			finish()
			spec, first = "", true
			continue
		}
		if first && line != "" {
			spec, first = specIn(line, known), false
		}
		if match := verdict.FindStringSubmatch(line); match != nil && spec != "" {
			last = outcome(spec, match)
			last.Kernel, last.Lab = kernel, lab
		}
		if match := explained.FindStringSubmatch(line); match != nil && last != nil && last.Reason == "" {
			last.Reason = match[1]
		}
	}
	finish()
	return lines.Err()
}

func outcome(spec string, match []string) *record.Test {
	seconds, _ := strconv.ParseFloat(match[2], 64) // the expression matches only numbers
	t := record.Test{Package: Package, Test: spec, Status: "FAIL", Seconds: int(math.Ceil(seconds))}
	switch match[1] {
	case "":
		t.Status = "PASS"
	case "SKIPPED":
		t.Status = "SKIP"
	}
	return &t
}

// specIn returns the spec's name at the beginning of the line, or "" if there is none.
func specIn(line string, known map[string]bool) string {
	for !known[line] {
		shorter := label.ReplaceAllString(line, "")
		if shorter == line {
			return ""
		}
		line = shorter
	}
	return line
}

// Remaining returns the specs that have not passed. Specs that skipped themselves run again, because another cluster
// may meet their requirements.
func Remaining(specs []string, done []record.Test) (left []string) {
	for _, spec := range specs {
		if !slices.ContainsFunc(done, func(t record.Test) bool { return t.Test == spec && t.Status == "PASS" }) {
			left = append(left, spec)
		}
	}
	return left
}

// Section returns the part of docs/conformance.md about these specs.
func Section(results []record.Test) string {
	specs := slices.DeleteFunc(slices.Clone(results), func(t record.Test) bool { return t.Package != Package })
	var b strings.Builder
	b.WriteString(`
## Kubernetes' own tests

Kubernetes' program ` + "`e2e.test`" + ` runs specs in a [cluster with kubelets](cluster.md): nodes
with containerd, CoreDNS behind its Service, and kube-ipvs, installed from its chart and image, as
the only proxy. ` + "`make nightly PART=kubernetes`" + ` runs them.

`)
	if len(specs) == 0 {
		b.WriteString("None are recorded yet.\n")
		return b.String()
	}
	counts := map[string]int{}
	for _, t := range specs {
		counts[t.Status]++
	}
	fmt.Fprintf(&b, "Passed: %d, failed: %d, skipped by the spec itself: %d.\n\n", counts["PASS"], counts["FAIL"], counts["SKIP"])
	return b.String() + Table(specs)
}

// Table formats the outcomes as a table.
func Table(all []record.Test) string {
	var b strings.Builder
	b.WriteString("| spec | result | seconds | where |\n|---|---|---|---|\n")
	for _, t := range all {
		result := map[string]string{"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}[t.Status]
		if t.Reason != "" {
			result += ": " + t.Reason
		}
		where := strings.Join(append([]string{t.Where()}, t.Figures...), ", ")
		fmt.Fprintf(&b, "| %s | %s | %d | %s |\n", strings.ReplaceAll(t.Test, "|", "\\|"), strings.ReplaceAll(result, "|", "\\|"), t.Seconds, where)
	}
	return b.String()
}
