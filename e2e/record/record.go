// Package record keeps the results of the long tests: each run of a part, and the newest result of each test that a
// page shows. docs/conformance.md, docs/scoreboard.md and parts of docs/performance.md are generated from it.
//
// May import: the standard library.
package record

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Files of the record, relative to the root of the repository.
const (
	LinesFile = "e2e/record/record.jsonl"  // a Line for each run of a part
	TestsFile = "e2e/record/results.jsonl" // the newest Test for each kernel
)

// State is the verdict on a run of a part.
type State string

// A part that did not finish has no line and no state.
const (
	Passed State = "passed"
	Failed State = "failed"
	Flaky  State = "flaky" // passed, but failed before at the same commit
)

// Line is one run of a part.
type Line struct {
	Part    string   `json:"part"`
	Targets []string `json:"targets"` // of make
	Kernel  string   `json:"kernel,omitempty"`
	Lab     string   `json:"lab,omitempty"`
	Commit  string   `json:"commit"`
	Date    string   `json:"date"` // when the run ended, in RFC 3339
	Seconds int      `json:"seconds"`
	State   State    `json:"state"`
	Passed  int      `json:"passed"`
	Failed  int      `json:"failed"`
	Seed    int64    `json:"seed,omitempty"`
	Failing []string `json:"failing,omitempty"` // failed tests, and targets that failed without a failed test
}

// Test is the result of a test. The first fields come from "ran test" or the lab; the others are added when the run
// is recorded.
type Test struct {
	Package string   `json:"package"` // directory in the repository, or "kubernetes"
	Test    string   `json:"test"`
	Status  string   `json:"status"` // PASS, FAIL or SKIP
	Kernel  string   `json:"kernel,omitempty"`
	Lab     string   `json:"lab,omitempty"`
	Figures []string `json:"figures,omitempty"` // the test's measurements: t.Attr("figure", ...)
	Reason  string   `json:"reason,omitempty"`  // of a failure or skip, if it is a single line

	Seconds int    `json:"seconds,omitempty"`
	Part    string `json:"part,omitempty"`
	Commit  string `json:"commit,omitempty"`
	Date    string `json:"date,omitempty"`
	// Source is a digest of the agent's source code. Only new results of benchmarks have it.
	Source string `json:"source,omitempty"`
}

// Figure is the key of an attribute with a measurement.
const Figure = "figure"

// Name returns the package and name of the test.
func (t Test) Name() string { return t.Package + " " + t.Test }

// Where describes the kernel of a result and, once it is recorded, its commit.
func (t Test) Where() string {
	kernel := KernelName(t.Kernel, t.Lab)
	if kernel == "" {
		kernel = "no kernel"
	}
	if t.Commit == "" {
		return kernel
	}
	return fmt.Sprintf("%s at %.8s, %.10s", kernel, t.Commit, t.Date)
}

// A lab's name has one of these suffixes if the agent balances with nftables, or in its own process, instead of IPVS.
const (
	WithoutIPVS = " nftables"
	InUserspace = " userspace"
)

// splitLab splits a name such as "uml virtual nftables" into the machine, its clock, and what balances if IPVS does not.
func splitLab(lab string) (machine, clock, plane string) {
	for _, suffix := range []string{WithoutIPVS, InUserspace} {
		if on, found := strings.CutSuffix(lab, suffix); found {
			lab, plane = on, suffix
		}
	}
	machine, clock, _ = strings.Cut(lab, " ")
	return machine, clock, plane
}

// KernelName shortens 6.1.0-56-amd64 to 6.1, because patch levels change often. It marks user-mode Linux and results
// without IPVS.
func KernelName(release, lab string) string {
	parts := strings.SplitN(release, ".", 3)
	if len(parts) < 2 {
		return release
	}
	minor, _, _ := strings.Cut(parts[1], "-")
	machine, _, plane := splitLab(lab)
	name := parts[0] + "." + minor
	if machine == "uml" {
		name += " (UML)"
	}
	if plane != "" {
		name += "," + plane
	}
	return name
}

// Conclude summarizes a run. tests are in the order in which they ended, and broken contains the failed targets. A test
// that every target skipped counts as failed, because it proves nothing.
func (l Line) Conclude(tests []Test, broken []string) Line {
	last := map[string]string{} // by name and kernel
	var kernels, labs []string
	for _, t := range tests {
		last[t.Name()+t.Kernel] = t.Status
		kernels, labs = append(kernels, t.Kernel), append(labs, t.Lab)
	}
	for _, status := range last {
		if status == "PASS" {
			l.Passed++
		} else {
			l.Failed++
		}
	}
	l.Kernel, l.Lab = joined(kernels), joined(labs)
	l.Failing, l.State = failing(tests, last), Passed
	if len(l.Failing) > 0 {
		l.State = Flaky // Failed, below, takes precedence
	}
	if len(l.Failing) == 0 {
		l.Failing = slices.Clone(broken)
	}
	if len(tests) == 0 && len(broken) == 0 {
		l.Failing = []string{"no test ran"}
	}
	if len(broken) > 0 || l.Failed > 0 || len(tests) == 0 {
		l.State = Failed
	}
	return l
}

// failing returns the tests that failed or were skipped. It leaves out tests that failed only because of a subtest.
func failing(tests []Test, last map[string]string) (names []string) {
	for _, t := range tests {
		skippedHere := t.Status == "SKIP" && last[t.Name()+t.Kernel] == "PASS" // skipped here, but passed in another target of the part
		if t.Status != "PASS" && !skippedHere && !parentOfAnother(t, tests) {
			names = append(names, t.Name())
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func parentOfAnother(t Test, all []Test) bool {
	return slices.ContainsFunc(all, func(o Test) bool {
		return o.Package == t.Package && o.Status != "PASS" && strings.HasPrefix(o.Test, t.Test+"/")
	})
}

func joined(all []string) string {
	all = slices.DeleteFunc(slices.Clone(all), func(s string) bool { return s == "" })
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ", ")
}

// After marks a passed line as flaky if the part failed before at the same commit.
func (l Line) After(earlier []Line) Line {
	for _, e := range earlier {
		if e.Part == l.Part && e.Commit == l.Commit && e.State != Passed && l.State == Passed {
			l.State, l.Failing = Flaky, e.Failing
		}
	}
	return l
}

// Read reads a file with a JSON object per line. A missing file counts as empty.
func Read[T any](path string) ([]T, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []T
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		var value T
		if err := json.Unmarshal(lines.Bytes(), &value); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, n, err)
		}
		all = append(all, value)
	}
	return all, lines.Err()
}

// Write replaces a file.
func Write[T any](path string, all []T) error { return put(path, all, os.O_TRUNC) }

// Append appends lines in a single write, so that an interrupted program leaves only whole lines.
func Append[T any](path string, all ...T) error { return put(path, all, os.O_APPEND) }

func put[T any](path string, all []T, how int) error {
	var text bytes.Buffer
	out := json.NewEncoder(&text)
	out.SetEscapeHTML(false)
	for _, value := range all {
		if err := out.Encode(value); err != nil {
			return err
		}
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|how, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(text.Bytes())
	return errors.Join(err, file.Close())
}

// ReadTests reads all results below a directory in the order of file names.
func ReadTests(dir string) (all []Test, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".jsonl" || d.IsDir() {
			return err
		}
		tests, err := Read[Test](path)
		all = append(all, tests...)
		return err
	})
	return slices.DeleteFunc(all, func(t Test) bool { return t.Test == "" }), err
}

// Replace replaces older results of the same part, test, kernel and clock, and sorts the results.
func Replace(have, newer []Test) []Test {
	key := func(t Test) string {
		_, clock, _ := splitLab(t.Lab)
		return strings.Join([]string{t.Package, t.Test, KernelName(t.Kernel, t.Lab), clock, t.Part}, "\x00")
	}
	last := map[string]Test{}
	for _, t := range slices.Concat(have, newer) {
		last[key(t)] = t
	}
	all := make([]Test, 0, len(last))
	for _, t := range last {
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b Test) int { return strings.Compare(key(a), key(b)) })
	return all
}
