package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// labtestSuffix ends the import path of the package with which tests ask for a kernel.
const labtestSuffix = "/internal/labtest"

// kernelTestCommand compiles the tests here and runs them all in one lab.
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
	plan, err := planTests(ctx, work.path, tests)
	if ctx.Err() != nil {
		return 0, errors.New("interrupted")
	}
	if err != nil {
		return 0, err
	}
	plan.Timeout = opts.timeout
	file := filepath.Join(work.path, "plan.json")
	text, err := json.Marshal(plan)
	if err != nil {
		return 0, err
	}
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return 0, err
	}
	exe, err := os.Executable()
	if err != nil {
		return 0, err
	}
	return start(opts, job{args: []string{exe, "run-tests", file}})
}

// listedPackage is what of "go list -json" is needed.
type listedPackage struct {
	ImportPath, Dir           string
	Deps                      []string
	TestGoFiles, XTestGoFiles []string
	TestImports, XTestImports []string
	Module                    struct{ Path string }
}

func planTests(ctx context.Context, dir string, tests testOptions) (testPlan, error) {
	listed, err := goList(ctx, tests.packages)
	if err != nil {
		return testPlan{}, err
	}
	plan := testPlan{Run: tests.run, Count: tests.count, Verbose: tests.verbose}
	for _, p := range listed {
		if !p.hasKernelTests() {
			continue
		}
		planned, err := planPackage(ctx, p, filepath.Join(dir, fmt.Sprintf("%d.test", len(plan.Packages))))
		if err != nil {
			return testPlan{}, err
		}
		plan.Packages = append(plan.Packages, planned)
	}
	if len(plan.Packages) == 0 {
		return testPlan{}, userErrorf("no test file in %s imports internal/labtest, so there is no kernel test",
			strings.Join(tests.packages, " "))
	}
	return plan, nil
}

func (p listedPackage) imports() []string { return slices.Concat(p.TestImports, p.XTestImports) }

func (p listedPackage) labtest() string { return p.Module.Path + labtestSuffix }

func (p listedPackage) hasKernelTests() bool {
	return p.ImportPath == p.labtest() || slices.Contains(p.imports(), p.labtest())
}

// planPackage compiles the tests of a package and finds out which of them are for the kernel.
func planPackage(ctx context.Context, p listedPackage, binary string) (plannedPackage, error) {
	planned := plannedPackage{Path: p.ImportPath, Dir: p.Dir}
	functions, err := p.testFunctions(ctx)
	if err != nil {
		return planned, err
	}
	planned.Skip, planned.Expected = skipPattern(functions.ordinary), functions.sure
	out, err := goCommand(ctx, "test", "-c", "-o", binary, p.ImportPath)
	if err != nil {
		fmt.Fprintf(os.Stderr, "# %s\n%s", p.ImportPath, out)
		return planned, ctx.Err()
	}
	planned.Binary = binary
	return planned, nil
}

// testFunctions classifies the tests of a package. In labtest's own package everything may be about the kernel.
func (p listedPackage) testFunctions(ctx context.Context) (testFunctions, error) {
	helpers, err := helperPackages(ctx, p)
	if err != nil {
		return testFunctions{}, err
	}
	inside, err := classifyTests(p.Dir, p.TestGoFiles, p.labtest(), helpers)
	if err != nil {
		return testFunctions{}, err
	}
	outside, err := classifyTests(p.Dir, p.XTestGoFiles, p.labtest(), helpers)
	if err != nil {
		return testFunctions{}, err
	}
	all := testFunctions{
		sure:     append(inside.sure, outside.sure...),
		maybe:    append(inside.maybe, outside.maybe...),
		ordinary: append(inside.ordinary, outside.ordinary...),
	}
	if p.ImportPath == p.labtest() {
		all.ordinary = nil
	}
	return all, nil
}

// helperPackages are those imports of the tests that can reach labtest on their own.
func helperPackages(ctx context.Context, p listedPackage) (map[string]bool, error) {
	ours := map[string]bool{}
	for _, path := range p.imports() {
		if strings.HasPrefix(path, p.Module.Path+"/") && path != p.labtest() {
			ours[path] = true
		}
	}
	helpers := map[string]bool{}
	if len(ours) == 0 {
		return helpers, nil
	}
	listed, err := goList(ctx, slices.Sorted(maps.Keys(ours)))
	for _, l := range listed {
		helpers[l.ImportPath] = slices.Contains(l.Deps, p.labtest())
	}
	return helpers, err
}

func goList(ctx context.Context, patterns []string) ([]listedPackage, error) {
	out, err := goCommand(ctx, append([]string{"list",
		"-json=ImportPath,Dir,Deps,TestGoFiles,XTestGoFiles,TestImports,XTestImports,Module", "--"}, patterns...)...)
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

// goCommand runs the go tool; on failure the output is its complaint.
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
