package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/e2e/record"
)

// resultsFile is a file in $LAB_OUT with a record.Test in each line.
const resultsFile = "test-results.jsonl"

func writeResults(dir string, u testUnit, log *testLog) error {
	folder, _, _ := strings.Cut(u.Name, " ")
	mode := os.Getenv("LAB_MODE")
	if plane := os.Getenv(dataPlaneEnv); plane != "" {
		mode += " " + plane
	}
	tests := make([]record.Test, len(log.results))
	for i, r := range log.results {
		tests[i] = record.Test{Package: folder, Test: r.name, Status: r.status, Kernel: os.Getenv("LAB_KERNEL"), Lab: mode, Figures: r.figures}
	}
	return record.Append(filepath.Join(dir, resultsFile), tests...)
}

// cpuTimes contains totals of all CPUs from /proc/stat, in ticks of 10 ms.
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
		if n, err := fmt.Sscan(field, &ticks); n == 1 && err == nil && i <= 8 { // later fields are included in earlier ones
			c.total += ticks
			if i == 4 || i == 5 { // idle, or waiting for disks
				c.idle += ticks
			}
		}
	}
	return c
}

func (c cpuTimes) since(earlier cpuTimes) string {
	total, idle := c.total-earlier.total, c.idle-earlier.idle
	if total <= 0 {
		return "CPU time unknown"
	}
	return fmt.Sprintf("CPU %.1fs, idle %.0f%%", (total-idle)/100, 100*idle/total)
}
