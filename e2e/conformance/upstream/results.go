package upstream

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
)

// Read reads a file of outcomes, which may be missing.
func Read(file string) (all []Outcome, err error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		var o Outcome
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, o)
	}
	return all, nil
}

// Add adds an outcome to a file.
func Add(file string, o Outcome) error {
	line, err := json.Marshal(o)
	if err != nil {
		return err
	}
	out, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	_, err = out.Write(append(line, '\n'))
	return err
}

// FileName is the file beside this one with the outcomes that docs/conformance.md shows.
const FileName = "outcomes.jsonl"

const file = "e2e/conformance/upstream/" + FileName // from the root of the repository

// Record keeps outcomes for docs/conformance.md, in place of earlier ones of the same specs.
func Record(found []Outcome) error {
	kept, err := Read(file)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(file); err != nil {
		return err
	}
	for _, o := range Latest(append(kept, found...)) {
		if err := Add(file, o); err != nil {
			return err
		}
	}
	return nil
}

// Latest keeps the last outcome of each spec, by name.
func Latest(all []Outcome) []Outcome {
	last := map[string]Outcome{}
	for _, o := range all {
		last[o.Spec] = o
	}
	var kept []Outcome
	for _, o := range last {
		kept = append(kept, o)
	}
	slices.SortFunc(kept, func(a, b Outcome) int { return strings.Compare(a.Spec, b.Spec) })
	return kept
}

// Remaining are the specs that neither passed nor skipped themselves.
func Remaining(specs []string, done []Outcome) (left []string) {
	for _, spec := range specs {
		if !slices.ContainsFunc(done, func(o Outcome) bool { return o.Spec == spec && o.State != Failed }) {
			left = append(left, spec)
		}
	}
	return left
}

// Section is the part of docs/conformance.md about these specs.
func Section(all []Outcome) string {
	if len(all) == 0 {
		return "\n## Kubernetes' own tests\n\nNone are recorded. `make k8s-e2e RECORD=1` runs them in a [cluster with kubelets](cluster.md).\n"
	}
	counts, versions, first, last := map[State]int{}, map[string]bool{}, all[0].Date, all[0].Date
	for _, o := range all {
		counts[o.State]++
		versions[o.Kubernetes] = true
		first, last = min(first, o.Date), max(last, o.Date)
	}
	return fmt.Sprintf(`
## Kubernetes' own tests

The program `+"`e2e.test`"+` of Kubernetes %s ran these specs in a [cluster with kubelets](cluster.md): two
nodes with containerd, CoreDNS behind its Service, and kube-ipvs from its chart and image as the only
proxy. Days: %s to %s. Passed: %d, failed: %d, skipped by the spec itself: %d.
`+"`make k8s-e2e RECORD=1`"+` runs them, and `+"`make conformance`"+` writes this page.

`, strings.Join(slices.Sorted(maps.Keys(versions)), ", "), first, last, counts[Passed], counts[Failed], counts[Skipped]) + Table(all)
}

// Table is outcomes as a table for people.
func Table(all []Outcome) string {
	var b strings.Builder
	b.WriteString("| spec | result | seconds | kernel |\n|---|---|---|---|\n")
	for _, o := range all {
		result := string(o.State)
		if o.Reason != "" {
			result += ": " + strings.ReplaceAll(o.Reason, "|", "\\|")
		}
		fmt.Fprintf(&b, "| %s | %s | %.0f | %s |\n", strings.ReplaceAll(o.Spec, "|", "\\|"), result, o.Seconds, o.Kernel)
	}
	return b.String()
}
