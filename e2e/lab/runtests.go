package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// testPlan is what kernel-test prepared on the host for run-tests in the lab.
type testPlan struct {
	Packages []plannedPackage
	Run      string
	Count    int
	Verbose  bool
	Timeout  time.Duration // for all packages together; 0 for none
}

type plannedPackage struct {
	Path     string // import path
	Dir      string
	Binary   string // empty when it could not be built
	Skip     string // -test.skip expression
	Expected []string
}

// runTestsCommand runs the planned packages one after the other. They share one kernel, parts of which, such as the
// IPVS service table, are not divided by namespace.
func runTestsCommand(args []string) (int, error) {
	text, err := os.ReadFile(args[0])
	if err != nil {
		return 0, err
	}
	var plan testPlan
	if err := json.Unmarshal(text, &plan); err != nil {
		return 0, err
	}
	began := time.Now()
	var total testCount
	failed := false
	for _, p := range plan.Packages {
		count, ok, err := plan.runPackage(p, began)
		if err != nil {
			return 0, err
		}
		total.add(count)
		failed = failed || !ok
	}
	for _, name := range total.Missing {
		fmt.Printf("did not ask labtest for the kernel: %s\n", name)
	}
	fmt.Printf("%s (kernel %s, %s)\n", total, os.Getenv("LAB_KERNEL"), os.Getenv("LAB_MODE"))
	if failed || !total.ok() {
		return 1, nil
	}
	return 0, nil
}

// runPackage runs one test binary as "go test" does: in its source folder, its output shown when it fails.
func (plan testPlan) runPackage(p plannedPackage, began time.Time) (testCount, bool, error) {
	if p.Binary == "" {
		fmt.Printf("FAIL\t%s [build failed]\n", p.Path)
		return testCount{}, false, nil
	}
	record, err := os.CreateTemp("", "lab-record-")
	if err != nil {
		return testCount{}, false, err
	}
	record.Close()
	defer os.Remove(record.Name())

	log := newTestLog(os.Stdout, plan.Verbose)
	cmd := exec.Command(p.Binary, plan.testArgs(p, time.Since(began))...)
	cmd.Dir = p.Dir
	cmd.Env = append(os.Environ(), "KUBE_IPVS_LAB_RECORD="+record.Name(), "PWD="+p.Dir)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.WaitDelay = drainTime
	start := time.Now()
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		return testCount{}, false, err
	}
	ok := err == nil
	log.finish(!ok)
	took := time.Since(start).Seconds()
	if !ok {
		fmt.Printf("%v\nFAIL\t%s\t%.3fs\n", err, p.Path, took)
	} else {
		note := ""
		if len(log.results) == 0 {
			note = " [no tests to run]"
		}
		fmt.Printf("ok  \t%s\t%.3fs%s\n", p.Path, took, note)
	}
	recorded, err := readRecord(record.Name())
	if err != nil {
		return testCount{}, false, err
	}
	count := countTests(log, recorded, plan.expected(p, log))
	for i, name := range count.Missing {
		count.Missing[i] = p.Path + "." + name
	}
	return count, ok, nil
}

// expected narrows the tests that must have run to those the user asked for: with a -run expression, those it started.
func (plan testPlan) expected(p plannedPackage, log *testLog) []string {
	if plan.Run == "" {
		return p.Expected
	}
	return slices.DeleteFunc(slices.Clone(p.Expected), func(name string) bool { return log.started[name] == 0 })
}

// testArgs are the flags "go test" would give, the time limit so that a test that hangs shows its goroutines before
// the lab's own limit ends everything.
func (plan testPlan) testArgs(p plannedPackage, spent time.Duration) []string {
	args := []string{"-test.paniconexit0", "-test.v=test2json", "-test.count=" + strconv.Itoa(plan.Count)}
	if plan.Run != "" {
		args = append(args, "-test.run="+plan.Run)
	}
	if p.Skip != "" {
		args = append(args, "-test.skip="+p.Skip)
	}
	limit := time.Duration(0)
	if plan.Timeout > 0 {
		limit = max(plan.Timeout-spent-30*time.Second, 10*time.Second)
	}
	return append(args, "-test.timeout="+limit.String())
}

func readRecord(path string) ([]string, error) {
	text, err := os.ReadFile(filepath.Clean(path))
	if err != nil {
		return nil, err
	}
	names := strings.Fields(string(text))
	slices.Sort(names)
	return slices.Compact(names), nil
}
