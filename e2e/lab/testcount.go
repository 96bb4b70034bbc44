package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// testCount is the outcome of one or more units.
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

// ok reports whether every kernel test ran. A test that is skipped here would run nowhere.
func (c testCount) ok() bool {
	return c.Ran > 0 && c.Failed == 0 && c.Skipped == 0 && len(c.Missing) == 0 && !c.Broken
}

func (c testCount) String() string {
	return fmt.Sprintf("kernel tests: %d ran, %d failed, %d skipped", c.Ran, c.Failed, c.Skipped)
}

func (c testCount) conclude(w io.Writer, where string) int {
	for _, name := range c.Missing {
		fmt.Fprintf(w, "kernel test that never called labtest: %s\n", name)
	}
	fmt.Fprintf(w, "%s (%s)\n", c, where)
	if !c.ok() {
		return 1
	}
	return 0
}

// countTests counts the subtests of kernel tests. recorded are the tests that requested the kernel from labtest, and
// expected are the tests whose source requests it. A parent with subtests is not counted.
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
			// Subtests report first, and a parent may have failed only because of them.
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
			c.Failed++ // ended by a panic or a timeout
		}
	}
	c.Missing = missingTests(recorded, expected)
	return c
}

// missingTests returns the expected tests that did not request the kernel, either directly or in a subtest.
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
