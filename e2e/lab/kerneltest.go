package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Tests that import these packages need a kernel. The paths are relative to the module's path.
const (
	labtestSuffix = "/internal/kernel/labtest"
	clusterSuffix = "/e2e/testbed/cluster"
)

// kernelTestCommand compiles tests on the host and runs them in the lab.
func kernelTestCommand(args []string) (int, error) {
	opts, tests, err := parseTestFlags(args, testTimeout)
	if err != nil {
		return 0, err
	}
	if err := dieWithParent(); err != nil {
		return 0, err
	}
	work, err := newRunDir("tests")
	if err != nil {
		return 0, err
	}
	defer work.remove()
	ctx, done := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer done()
	plan, err := planTests(ctx, tests)
	if err != nil {
		return 0, firstError(ctx.Err(), err)
	}
	plan.Timeout = opts.timeout
	for i := range plan.Units {
		if err := plan.Units[i].compile(ctx); err != nil {
			return 0, firstError(ctx.Err(), err)
		}
	}
	if tests.build {
		return plan.built(), nil
	}
	command, err := plan.command(filepath.Join(work.path, "plan.json"))
	if err != nil {
		return 0, err
	}
	return start(opts, job{args: command})
}

func (plan testPlan) built() int {
	if slices.ContainsFunc(plan.Units, func(u testUnit) bool { return u.Binary == "" }) {
		return 1
	}
	return 0
}

func (plan testPlan) command(file string) ([]string, error) {
	text, err := json.Marshal(plan)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	return []string{exe, "run-tests", file}, err
}

// listedPackage is the output of "go list -json".
type listedPackage struct {
	ImportPath, Dir           string
	TestGoFiles, XTestGoFiles []string
	Module                    struct{ Path string }
}

// planTests decides which tests to run. Each word of PKG is a package pattern or PACKAGE:TESTS, where TESTS is a
// regular expression. The matching tests become a separate unit, or are excluded if the word starts with a minus.
// A separate word PACKAGE selects the remaining tests.
func planTests(ctx context.Context, tests testOptions) (testPlan, error) {
	plan := testPlan{Run: tests.run, Count: tests.count, Verbose: tests.verbose}
	parts := partsOf(tests.packages)
	for _, word := range tests.packages {
		units, err := unitsOf(ctx, word, parts, tests.run)
		if err != nil {
			return testPlan{}, err
		}
		plan.Units = append(plan.Units, units...)
	}
	if len(plan.Units) == 0 {
		return testPlan{}, userErrorf("no test file in %s imports internal/kernel/labtest or e2e/testbed/cluster, so there is no kernel test",
			strings.Join(tests.packages, " "))
	}
	return plan, nil
}

// partsOf returns the regular expressions in words, keyed by package pattern.
func partsOf(words []string) map[string][]string {
	parts := map[string][]string{}
	for _, word := range words {
		if pattern, names, cut := strings.Cut(strings.TrimPrefix(word, "-"), ":"); cut {
			parts[pattern] = append(parts[pattern], names)
		}
	}
	return parts
}

func unitsOf(ctx context.Context, word string, parts map[string][]string, run string) (units []testUnit, err error) {
	pattern, names, cut := strings.Cut(word, ":")
	if strings.HasPrefix(word, "-") || cut && run != "" {
		return nil, nil // RUN applies to the word without TESTS
	}
	listed, err := goList(ctx, []string{pattern})
	if err != nil {
		return nil, err
	}
	for _, p := range listed {
		u, err := p.unit()
		if err != nil {
			return nil, err
		}
		switch {
		case len(u.Expected) == 0:
			continue
		case cut:
			u.only(names)
			if len(u.Expected) == 0 {
				return nil, userErrorf("no kernel test of %s matches %s", pattern, names)
			}
		case run == "":
			u.except(parts[pattern])
		}
		units = append(units, u)
	}
	return units, nil
}

func (p listedPackage) unit() (testUnit, error) {
	found, err := findTests(p.Dir, slices.Concat(p.TestGoFiles, p.XTestGoFiles),
		[]string{p.Module.Path + labtestSuffix, p.Module.Path + clusterSuffix})
	if err != nil {
		return testUnit{}, err
	}
	return testUnit{Name: strings.TrimPrefix(p.ImportPath, p.Module.Path+"/"), Path: p.ImportPath, Dir: p.Dir,
		Skip: skipPattern(found.host...), Expected: found.kernel}, nil
}

// only limits a unit to the tests that match an expression.
func (u *testUnit) only(names string) {
	u.Run = skipPattern(names)
	u.Name += " " + names
	u.keep(func(name string) bool { return regexp.MustCompile(u.Run).MatchString(name) })
}

func (u *testUnit) except(others []string) {
	if len(others) == 0 {
		return
	}
	theirs := regexp.MustCompile(skipPattern(others...))
	u.Skip = joinPatterns(u.Skip, theirs.String())
	u.keep(func(name string) bool { return !theirs.MatchString(name) })
}

func (u *testUnit) keep(wanted func(string) bool) {
	u.Expected = slices.DeleteFunc(u.Expected, func(name string) bool { return !wanted(name) })
}

func joinPatterns(a, b string) string {
	if a == "" {
		return b
	}
	return a + "|" + b
}

// compile builds the unit's test binary. All runs in this clone share the directory, so that up-to-date binaries are
// not rebuilt.
func (u *testUnit) compile(ctx context.Context) error {
	dir, err := localDir("binaries")
	if err != nil {
		return err
	}
	binary := filepath.Join(dir, strings.ReplaceAll(u.Path, "/", "_")+".test")
	return withLock("binaries", func() error {
		out, err := goCommand(ctx, "test", "-c", "-ldflags=-w", "-o", binary, u.Path)
		if err != nil {
			fmt.Fprintf(os.Stderr, "# %s\n%s", u.Path, out)
			return ctx.Err()
		}
		u.Binary = binary
		return nil
	})
}

func goList(ctx context.Context, patterns []string) ([]listedPackage, error) {
	out, err := goCommand(ctx, append([]string{"list",
		"-json=ImportPath,Dir,TestGoFiles,XTestGoFiles,Module", "--"}, patterns...)...)
	if err != nil {
		return nil, userErrorf("go list %s: %v\n%s", strings.Join(patterns, " "), err, out)
	}
	var all []listedPackage
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listedPackage
		err := decoder.Decode(&p)
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		all = append(all, p)
	}
}

// goCommand runs the go tool. On failure, its output contains the error message.
func goCommand(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	out, err := cmd.Output()
	if err != nil {
		return complaint.Bytes(), err
	}
	return out, nil
}
