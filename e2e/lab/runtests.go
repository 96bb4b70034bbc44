package main

import (
	"cmp"
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

// testPlan is prepared by kernel-test on the host. run-tests carries it out in the lab.
type testPlan struct {
	Units   []testUnit
	Run     string
	Count   int
	Verbose bool
	Timeout time.Duration // for all units together; 0 for none
}

// testUnit contains some or all tests of a package.
type testUnit struct {
	Name     string // the package's directory and the selected tests
	Path     string // import path
	Dir      string
	Binary   string   // empty if it could not be built
	Run      string   // -test.run expression; empty for all, or for the plan's selection
	Skip     string   // -test.skip expression
	Expected []string // tests that must run on the kernel
}

// runTestsCommand runs the planned units one after the other. They cannot run concurrently, because all namespaces of a
// kernel share its IPVS service table.
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
	for _, u := range plan.Units {
		count, err := plan.runUnit(u, began)
		if err != nil {
			return 0, err
		}
		total.add(count)
	}
	return total.conclude(os.Stdout, fmt.Sprintf("kernel %s, %s", os.Getenv("LAB_KERNEL"), os.Getenv("LAB_MODE"))), nil
}

// runUnit runs a test binary as "go test" does: in its source directory, and printing its output only if it fails.
func (plan testPlan) runUnit(p testUnit, began time.Time) (testCount, error) {
	if p.Binary == "" {
		fmt.Printf("FAIL\t%s [build failed]\n", p.Path)
		return testCount{Broken: true}, nil
	}
	record, err := os.CreateTemp("", "lab-record-")
	if err != nil {
		return testCount{}, err
	}
	record.Close()
	defer os.Remove(record.Name())

	log := newTestLog(os.Stdout, plan.Verbose)
	cmd := exec.Command(p.Binary, plan.testArgs(p, time.Since(began))...)
	cmd.Dir = p.Dir
	cmd.Env = append(os.Environ(), "KUBE_IPVS_LAB_RECORD="+record.Name(), "PWD="+p.Dir)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.WaitDelay = drainTime
	start, cpu := time.Now(), readCPU()
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		return testCount{}, err
	}
	log.finish(err != nil)
	took := fmt.Sprintf("%.1fs\t%s", time.Since(start).Seconds(), readCPU().since(cpu))
	switch {
	case err != nil:
		fmt.Printf("%v\nFAIL\t%s\t%s\n", err, p.Name, took)
	case len(log.results) == 0:
		fmt.Printf("ok  \t%s\t%s [no tests to run]\n", p.Name, took)
	default:
		fmt.Printf("ok  \t%s\t%s\n", p.Name, took)
	}
	recorded, readErr := readRecord(record.Name())
	if readErr != nil {
		return testCount{}, readErr
	}
	count := countTests(log, recorded, plan.expected(p, log))
	count.Broken = err != nil
	for i, name := range count.Missing {
		count.Missing[i] = p.Path + "." + name
	}
	return count, writeResults(os.Getenv("LAB_OUT"), p, log)
}

// expected returns the tests that must run. With a -run expression, these are the tests that started.
func (plan testPlan) expected(p testUnit, log *testLog) []string {
	if plan.Run == "" {
		return p.Expected
	}
	return slices.DeleteFunc(slices.Clone(p.Expected), func(name string) bool { return log.started[name] == 0 })
}

// testArgs returns the flags that "go test" would pass. A test that reaches its time limit prints its goroutines before
// the lab's own limit kills it.
func (plan testPlan) testArgs(p testUnit, spent time.Duration) []string {
	args := []string{"-test.paniconexit0", "-test.v=test2json", "-test.count=" + strconv.Itoa(plan.Count)}
	if run := cmp.Or(plan.Run, p.Run); run != "" {
		args = append(args, "-test.run="+run)
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
