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
)

// Results of all runs, sorted: the newest of each row, test and kernel.
type Results []Result

// ReadResults reads the results kept in a file; a file that does not exist holds none.
func ReadResults(path string) (Results, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parse(path, text)
}

// parse reads one JSON object in a line.
func parse(path string, text []byte) (Results, error) {
	var all Results
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		var r Result
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, n, err)
		}
		all = append(all, r)
	}
	return all, lines.Err()
}

// Add takes the results of a run from the file or the folders below one: each replaces an older one of the same test.
func (rs Results) Add(path string) (Results, error) {
	var files []string
	err := filepath.WalkDir(path, func(p string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && (p == path || filepath.Base(p) == resultsFile) {
			files = append(files, p)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s holds no %s: run the tests in the lab with OUT=%s first", path, resultsFile, path)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		run, err := parse(file, text)
		if err != nil {
			return nil, err
		}
		for _, r := range run {
			rs = slices.DeleteFunc(rs, func(old Result) bool { return old.key() == r.key() })
			rs = append(rs, r)
		}
	}
	return rs, nil
}

type resultKey struct {
	row          int
	test, kernel string
}

func (r Result) key() resultKey { return resultKey{r.Row, r.Test, r.Kernel} }

// Of keeps the results of tests that still claim their row, sorted.
func (rs Results) Of(claims Claims) Results {
	kept := slices.DeleteFunc(slices.Clone(rs), func(r Result) bool { return !slices.Contains(claims[r.Row], r.Test) })
	slices.SortFunc(kept, func(a, b Result) int {
		return cmp.Or(cmp.Compare(a.Row, b.Row), cmp.Compare(a.Test, b.Test), cmp.Compare(a.Kernel, b.Kernel))
	})
	return kept
}

// Write keeps the results in a file.
func (rs Results) Write(path string) error {
	var text bytes.Buffer
	for _, r := range rs {
		line, err := json.Marshal(r)
		if err != nil {
			return err
		}
		text.Write(append(line, '\n'))
	}
	return os.WriteFile(path, text.Bytes(), 0o644)
}
