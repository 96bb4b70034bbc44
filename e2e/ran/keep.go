package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/bench"
	"github.com/kube-ipvs/kube-ipvs/e2e/conformance"
	"github.com/kube-ipvs/kube-ipvs/e2e/record"
	"github.com/kube-ipvs/kube-ipvs/e2e/scoreboard"
)

// recordFiles are the files of the record and its pages. A commit that changes only these files does not make a part older.
var recordFiles = append(record.RunsPages(), record.LinesFile, record.TestsFile, conformance.PagePath, scoreboard.PagePath, bench.PagePath, bench.SummaryPath, bench.PicturesPath)

// keptLines is the number of runs that the record keeps for each part.
const keptLines = 5

// keep adds the collected results to the record, writes the pages, and commits both.
func keep() error {
	changed, err := git(".", append([]string{"status", "--porcelain", "--"}, recordFiles...)...)
	if err != nil {
		return err
	}
	if changed != "" {
		return fmt.Errorf("the record has uncommitted changes:\n%s", changed)
	}
	n, err := openNight()
	if err != nil {
		return err
	}
	fresh, err := record.Read[record.Line](n.gathered())
	if err != nil {
		return err
	}
	foreign := func(commit string) bool { return commitsAfter(commit) == record.Unknown }
	for _, l := range fresh {
		if foreign(l.Commit) {
			return fmt.Errorf("%s tested %.8s, which is not part of HEAD's history; remove its line from %s, or switch to its branch", l.Part, l.Commit, n.gathered())
		}
	}
	if len(fresh) == 0 {
		return errors.New("no results to record; run make nightly first")
	}
	if err := record.Write(record.LinesFile, newest(n.lines)); err != nil {
		return err
	}
	tests, err := record.Read[record.Test](n.results())
	if err != nil {
		return err
	}
	if err := writePages(tests); err != nil {
		return err
	}
	names := make([]string, len(fresh))
	for i, l := range fresh {
		names[i] = fmt.Sprintf("%s %s", l.Part, l.State)
	}
	slices.Sort(names)
	args := []string{"commit", "--quiet", "-m", "record: " + strings.Join(slices.Compact(names), ", "), "--"}
	if len(args[3]) > 72 {
		args[3] = fmt.Sprintf("record: %d runs of parts\n\n%s", len(names), strings.Join(slices.Compact(names), "\n"))
	}
	if _, err := git(".", append(args, recordFiles...)...); err != nil {
		return err
	}
	return errors.Join(os.Remove(n.gathered()), os.Remove(n.results()))
}

func newest(lines []record.Line) []record.Line {
	seen := map[string]int{}
	var kept []record.Line
	for _, l := range slices.Backward(lines) {
		if seen[l.Part]++; seen[l.Part] <= keptLines {
			kept = append(kept, l)
		}
	}
	slices.Reverse(kept)
	return kept
}

// writePages adds results to those that the record keeps, and writes the pages.
func writePages(fresh []record.Test) error {
	p, err := readPages(fresh)
	if err != nil {
		return err
	}
	for path, text := range p.texts {
		err = errors.Join(err, os.WriteFile(path, []byte(text), 0o644))
	}
	return errors.Join(err, record.Write(record.TestsFile, p.results))
}

// pages contains the generated pages and pictures by path, and the results that they show.
type pages struct {
	texts   map[string]string
	results []record.Test
}

// readPages renders the pages from the sources, the record and fresh results.
func readPages(fresh []record.Test) (p pages, err error) {
	claims, err := conformance.FindClaims("e2e")
	if err != nil {
		return p, err
	}
	kept, err := record.Read[record.Test](record.TestsFile)
	if err != nil {
		return p, err
	}
	p.results = slices.DeleteFunc(record.Replace(kept, fresh), func(t record.Test) bool {
		return !claims.Shows(t) && !scoreboard.Shows(t) && !bench.Shows(t)
	})
	p.texts = map[string]string{conformance.PagePath: conformance.Page(claims, p.results), scoreboard.PagePath: scoreboard.Page(p.results)}
	now, err := measurable()
	if err != nil {
		return p, err
	}
	for _, path := range []string{bench.PagePath, bench.SummaryPath} {
		before, err := os.ReadFile(path)
		if err != nil {
			return p, err
		}
		text, pictures, err := bench.Page(path, string(before), p.results, now)
		if err != nil {
			return p, err
		}
		p.texts[path] = text
		for name, picture := range pictures {
			p.texts[filepath.Join(bench.PicturesPath, name)] = picture
		}
	}
	lines, err := record.Read[record.Line](record.LinesFile)
	if err != nil {
		return p, err
	}
	for _, path := range record.RunsPages() {
		before, err := os.ReadFile(path)
		if err != nil {
			return p, err
		}
		if p.texts[path], err = record.WithRuns(path, string(before), lines); err != nil {
			return p, err
		}
	}
	return p, nil
}

func ages(w io.Writer) error {
	lines, err := record.Read[record.Line](record.LinesFile)
	if err != nil {
		return err
	}
	fmt.Fprintln(w, "long tests (make nightly):")
	for _, a := range record.Ages(lines, commitsAfter) {
		fmt.Fprintln(w, " ", a)
	}
	return nil
}

// proven returns an error unless all parts passed recently.
func proven() error {
	lines, err := record.Read[record.Line](record.LinesFile)
	if err != nil {
		return err
	}
	var missing []string
	for _, a := range record.Ages(lines, commitsAfter) {
		if why := a.Unproven(time.Now()); why != "" {
			missing = append(missing, fmt.Sprintf("  %s %s", a.Part.Name, why))
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("not proven by the long tests (make nightly, then make nightly-record); DRAFT=1 builds anyway:\n%s", strings.Join(missing, "\n"))
	}
	return nil
}

// commitsAfter counts the commits after a given commit, except those that change only the record.
func commitsAfter(commit string) int {
	if _, err := git(".", "merge-base", "--is-ancestor", commit, "HEAD"); err != nil {
		return record.Unknown
	}
	args := []string{"rev-list", "--count", commit + "..HEAD", "--", "."}
	for _, file := range recordFiles {
		args = append(args, ":(exclude)"+file)
	}
	count, err := git(".", args...)
	if err != nil {
		return record.Unknown
	}
	n := record.Unknown
	_, _ = fmt.Sscan(count, &n) // git always prints a number
	return n
}
