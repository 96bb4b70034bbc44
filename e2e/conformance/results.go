package conformance

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/e2e/conformance/upstream"
)

// Result is the result of one test for one row on one kernel.
type Result struct {
	Row    int    `json:"row"`
	Test   string `json:"test"`
	Kernel string `json:"kernel"`
	Passed bool   `json:"passed"`
}

// resultsFile is written by the lab in $LAB_OUT: one labResult per line.
const resultsFile = "test-results.jsonl"

// labResult is the result of a test or subtest.
type labResult struct {
	Test   string `json:"test"`
	Status string `json:"status"` // PASS, FAIL or SKIP
	Kernel string `json:"kernel"`
	Lab    string `json:"lab"`
}

// Record holds the newest result of each row, test and kernel, and the newest outcome of each case and kernel.
type Record struct {
	Results []Result
	Seen    []Seen
	Specs   []upstream.Outcome // of Kubernetes' own tests
}

// The record is kept in these files in Folder.
const (
	Folder      = "e2e/conformance"
	keptResults = "results.jsonl"
	keptSeen    = "contrasts.jsonl"
)

// ReadRecord reads the record in a directory. A missing file counts as empty.
func ReadRecord(folder string) (r Record, err error) {
	if r.Results, err = readLines[Result](filepath.Join(folder, keptResults)); err != nil {
		return r, err
	}
	if r.Seen, err = readLines[Seen](filepath.Join(folder, keptSeen)); err != nil {
		return r, err
	}
	r.Specs, err = upstream.Read(filepath.Join(folder, "upstream", upstream.FileName))
	return r, err
}

// Add returns the record with the results of a run, found in the directories below folder. They replace older results of the
// same row, test and kernel.
func (r Record) Add(folder string, claims Claims) (Record, error) {
	found := false
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		switch filepath.Base(path) {
		case resultsFile:
			found = true
			var run []labResult
			if run, err = readLines[labResult](path); err == nil {
				r.Results = update(r.Results, claims.results(run))
			}
		case seenFile:
			found = true
			var run []Seen
			if run, err = readLines[Seen](path); err == nil {
				r.Seen = update(r.Seen, run)
			}
		}
		return err
	})
	if err == nil && !found {
		err = fmt.Errorf("%s contains neither %s nor %s; run the tests in the lab with OUT=%s first", folder, resultsFile, seenFile, folder)
	}
	return r, err
}

// Of returns the results of tests that still claim their row and of cases that still exist, sorted.
func (r Record) Of(claims Claims) Record {
	kept := slices.DeleteFunc(slices.Clone(r.Results), func(r Result) bool { return !slices.Contains(claims[r.Row], r.Test) })
	slices.SortFunc(kept, func(a, b Result) int {
		return cmp.Or(cmp.Compare(a.Row, b.Row), cmp.Compare(a.Test, b.Test), cmp.Compare(a.Kernel, b.Kernel))
	})
	return Record{Results: kept, Seen: ofContrasts(r.Seen), Specs: r.Specs}
}

// Write stores the record in a directory.
func (r Record) Write(folder string) error {
	return errors.Join(
		writeLines(filepath.Join(folder, keptResults), r.Results),
		writeLines(filepath.Join(folder, keptSeen), r.Seen))
}

// keyed is a finding that a newer finding with the same key replaces.
type keyed[K comparable] interface{ key() K }

type resultKey struct {
	row          int
	test, kernel string
}

func (r Result) key() resultKey { return resultKey{r.Row, r.Test, r.Kernel} }

func update[T keyed[K], K comparable](have, run []T) []T {
	for _, r := range run {
		have = append(slices.DeleteFunc(have, func(old T) bool { return old.key() == r.key() }), r)
	}
	return have
}

// results turns the test results of a run into results by row.
func (c Claims) results(run []labResult) []Result {
	byTest := map[string]labResult{}
	for _, r := range run {
		byTest[r.Test] = r
	}
	var results []Result
	for row, tests := range c {
		for _, test := range tests {
			if r, ran := byTest[test]; ran && r.Status != "SKIP" {
				results = append(results, Result{Row: row, Test: test, Kernel: upstream.KernelName(r.Kernel, r.Lab), Passed: r.Status == "PASS"})
			}
		}
	}
	return results
}

// readLines reads a file with one JSON object per line.
func readLines[T any](path string) ([]T, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []T
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		var value T
		if err := json.Unmarshal(lines.Bytes(), &value); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, n, err)
		}
		all = append(all, value)
	}
	return all, lines.Err()
}

func writeLines[T any](path string, all []T) error {
	text, err := linesOf(all)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}

// appendLines appends values to a file of JSON lines in one write, so that parallel tests do not mix their lines.
func appendLines[T any](path string, all ...T) error {
	text, err := linesOf(all)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.Write(text)
	return err
}

func linesOf[T any](all []T) ([]byte, error) {
	var text bytes.Buffer
	for _, value := range all {
		line, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		text.Write(append(line, '\n'))
	}
	return text.Bytes(), nil
}
