package scoreboard

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Folder holds one result per row, relative to the root of the repository.
const Folder = "e2e/scoreboard/results"

// Result is the newest measurement of a row.
type Result struct {
	Row     string   `json:"row"`
	Date    string   `json:"date"`
	Version string   `json:"version"`
	Kernel  string   `json:"kernel,omitempty"` // none: no probe needs a kernel
	Short   bool     `json:"short,omitempty"`  // not in full size
	Seconds int      `json:"seconds"`
	Passed  int      `json:"passed"`
	Failed  []string `json:"failed,omitempty"`
	Ours    []string `json:"ours,omitempty"`
	Peer    []string `json:"peer,omitempty"`
}

// ReadResults reads the results in a directory, by row.
func ReadResults(folder string) (map[string]Result, error) {
	results := map[string]Result{}
	for _, row := range Rows {
		text, err := os.ReadFile(filepath.Join(folder, row.Name+".json"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var r Result
		if err := json.Unmarshal(text, &r); err != nil {
			return nil, fmt.Errorf("%s.json: %w", row.Name, err)
		}
		results[row.Name] = r
	}
	return results, nil
}

// Write stores a result in a directory.
func (r Result) Write(folder string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, r.Row+".json"), append(text, '\n'), 0o644)
}

var (
	runLine   = regexp.MustCompile(`^=== (?:RUN|NAME|CONT)\s+(\S+)`)
	endLine   = regexp.MustCompile(`^\s*--- (PASS|FAIL|SKIP): (\S+) \(`)
	logPrefix = regexp.MustCompile(`^\s*\w+_test\.go:\d+: `)
	fuzzLine  = regexp.MustCompile(`fuzz: elapsed: \S+, execs: (\d+)`)
)

// peerPrefix marks a figure of kube-proxy.
const peerPrefix = "kube-proxy: "

// Add adds the output of go test -v: the results of its tests and the log lines that match.
func (r *Result) Add(output string, figures *regexp.Regexp) {
	test := ""
	for line := range strings.Lines(output) {
		line = strings.TrimRight(line, "\n")
		if m := runLine.FindStringSubmatch(line); m != nil {
			test = m[1]
		}
		if m := endLine.FindStringSubmatch(line); m != nil {
			test = m[2]
			r.count(m[1], test)
		}
		text := logPrefix.ReplaceAllString(line, "")
		if figures != nil && text != line && figures.MatchString(text) {
			r.publish(test, text)
		}
	}
}

// count counts a test that ended. A skipped test proves nothing, so it counts as failed.
func (r *Result) count(status, test string) {
	if status == "PASS" {
		r.Passed++
		return
	}
	if status == "SKIP" {
		test += " (skipped)"
	}
	r.Failed = append(r.Failed, test)
}

func (r *Result) publish(test, text string) {
	name := ""
	if _, sub, found := strings.Cut(test, "/"); found {
		name = strings.ReplaceAll(sub, "_", " ") + ": "
	}
	if theirs, found := strings.CutPrefix(text, peerPrefix); found {
		r.Peer = append(r.Peer, name+theirs)
		return
	}
	r.Ours = append(r.Ours, name+strings.TrimPrefix(text, "kube-ipvs: "))
}

// AddFuzzing adds the output of one fuzz target.
func (r *Result) AddFuzzing(target, output string, err error) {
	inputs := "0"
	for _, m := range fuzzLine.FindAllStringSubmatch(output, -1) {
		inputs = m[1]
	}
	if err != nil {
		r.Failed = append(r.Failed, target)
	} else {
		r.Passed++
	}
	r.Ours = append(r.Ours, fmt.Sprintf("%s: %s inputs", target, inputs))
}
