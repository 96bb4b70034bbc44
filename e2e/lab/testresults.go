package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/e2e/record"
)

// Files that run-tests leaves in $LAB_OUT.
const (
	countFile   = "count.json"         // a testCount
	resultsFile = "test-results.jsonl" // a record.Test in each line
)

func writeResults(dir string, u testUnit, log *testLog) error {
	folder, _, _ := strings.Cut(u.Name, " ")
	tests := make([]record.Test, len(log.results))
	for i, r := range log.results {
		tests[i] = record.Test{Package: folder, Test: r.name, Status: r.status, Kernel: os.Getenv("LAB_KERNEL"), Lab: os.Getenv("LAB_MODE"), Figures: r.figures}
	}
	return record.Append(filepath.Join(dir, resultsFile), tests...)
}

func (c testCount) write(dir string) error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, countFile), text, 0o644)
}

// readCount returns a lab's count. A broken lab leaves none.
func readCount(dir string) testCount {
	var c testCount
	text, err := os.ReadFile(filepath.Join(dir, countFile))
	if err != nil || json.Unmarshal(text, &c) != nil {
		return testCount{Broken: true}
	}
	return c
}

// cpuTimes are from the first line of /proc/stat, in ticks of 10 ms, summed over the CPUs.
type cpuTimes struct{ total, idle float64 }

func readCPU() cpuTimes {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return cpuTimes{}
	}
	line, _, _ := strings.Cut(string(text), "\n")
	var c cpuTimes
	for i, field := range strings.Fields(line) {
		var ticks float64
		if n, err := fmt.Sscan(field, &ticks); n == 1 && err == nil && i <= 8 { // later fields are counted twice
			c.total += ticks
			if i == 4 || i == 5 { // idle and waiting for disks
				c.idle += ticks
			}
		}
	}
	return c
}

// since describes the CPUs' load since an earlier reading.
func (c cpuTimes) since(earlier cpuTimes) string {
	total, idle := c.total-earlier.total, c.idle-earlier.idle
	if total <= 0 {
		return "CPU time unknown"
	}
	return fmt.Sprintf("CPU %.1fs, idle %.0f%%", (total-idle)/100, 100*idle/total)
}
