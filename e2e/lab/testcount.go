package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// testCount is the outcome of one unit, or of all units, in the lab.
type testCount struct {
	Ran, Failed, Skipped int
	Missing              []string // should have run on the kernel but did not
	Broken               bool     // a test binary failed or could not be built
}

func (c *testCount) add(other testCount) {
	c.Ran += other.Ran
	c.Failed += other.Failed
	c.Skipped += other.Skipped
	c.Missing = append(c.Missing, other.Missing...)
	c.Broken = c.Broken || other.Broken
}

// ok reports whether every kernel test ran. A test that is skipped here would not run anywhere.
func (c testCount) ok() bool {
	return c.Ran > 0 && c.Failed == 0 && c.Skipped == 0 && len(c.Missing) == 0 && !c.Broken
}

func (c testCount) String() string {
	return fmt.Sprintf("kernel tests: %d ran, %d failed, %d skipped", c.Ran, c.Failed, c.Skipped)
}

// conclude prints the verdict and returns the exit status.
func (c testCount) conclude(w io.Writer, where string) int {
	for _, name := range c.Missing {
		fmt.Fprintf(w, "did not request the kernel from labtest: %s\n", name)
	}
	fmt.Fprintf(w, "%s (%s)\n", c, where)
	if !c.ok() {
		return 1
	}
	return 0
}

// countTests compares a test binary's results with recorded, the tests that requested the kernel from labtest, and with
// expected, the tests whose source requests it. Subtests of a recorded test are counted, and their parent is not.
func countTests(log *testLog, recorded, expected []string) testCount {
	var c testCount
	parents := map[string]bool{}
	for _, r := range log.results {
		for _, p := range ancestors(r.name) {
			parents[p] = true
		}
	}
	ended := map[string]int{}
	failedBelow := map[string]bool{}
	for _, r := range log.results {
		ended[r.name]++
		switch r.status {
		case "SKIP":
			c.Skipped++
			continue
		case "FAIL":
			// Subtests report before their parent, which may have failed only because of them.
			if !failedBelow[r.name] {
				c.Failed++
			}
			for _, p := range ancestors(r.name) {
				failedBelow[p] = true
			}
		}
		if !parents[r.name] && onKernel(r.name, recorded) {
			c.Ran++
		}
	}
	for name, times := range log.started {
		if times > ended[name] && !parents[name] {
			c.Failed++ // ended by a panic or the time limit
		}
	}
	c.Missing = missingTests(recorded, expected)
	return c
}

// missingTests returns the expected tests that did not request the kernel, either themselves or in a subtest.
func missingTests(recorded, expected []string) (missing []string) {
	for _, name := range expected {
		if !slices.ContainsFunc(recorded, func(r string) bool { return r == name || strings.HasPrefix(r, name+"/") }) {
			missing = append(missing, name)
		}
	}
	return missing
}

// onKernel reports whether the test or one of its parents requested the kernel.
func onKernel(name string, recorded []string) bool {
	return slices.ContainsFunc(append(ancestors(name), name), func(n string) bool { return slices.Contains(recorded, n) })
}

// ancestors returns a and a/b for a/b/c.
func ancestors(name string) []string {
	var above []string
	for i, r := range name {
		if r == '/' {
			above = append(above, name[:i])
		}
	}
	return above
}
