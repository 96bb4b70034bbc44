package cluster

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CPUTime returns the CPU time that the processes have used.
func CPUTime(t T, pids ...int) time.Duration {
	t.Helper()
	var total time.Duration
	for _, pid := range pids {
		used, err := UsedCPU(pid)
		if err != nil {
			t.Fatalf("%v", err)
		}
		total += used
	}
	return total
}

// UsedCPU returns the CPU time that a process has used, from its CPU-time clock (see clock_getcpuclockid(3)).
func UsedCPU(pid int) (time.Duration, error) {
	const ofProcess = 2
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|ofProcess), &used); err != nil {
		return 0, fmt.Errorf("CPU time of process %d: %w", pid, err)
	}
	return time.Duration(used.Nano()), nil
}

// ChildrenTime returns the CPU time of the child processes, such as iptables-save, that a process has waited for.
func ChildrenTime(t T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatalf("%v", err)
	}
	// The program's name, in parentheses, may contain anything.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	return ticks(t, fields[13:15])
}

// IdleTime returns the CPUs' idle time so far.
func IdleTime(t T) time.Duration {
	t.Helper()
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatalf("%v", err)
	}
	fields := strings.Fields(string(text)) // cpu user nice system idle iowait
	return ticks(t, fields[4:6])
}

func ticks(t T, fields []string) time.Duration {
	t.Helper()
	var total time.Duration
	for _, field := range fields {
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatalf("parse a CPU time in /proc: %v", err)
		}
		total += time.Duration(n) * (time.Second / 100)
	}
	return total
}
