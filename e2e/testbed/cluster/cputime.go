package cluster

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CPUTime is what processes have used so far.
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

// UsedCPU is what a process has used so far, by the clock that clock_getcpuclockid(3) names.
func UsedCPU(pid int) (time.Duration, error) {
	const ofProcess = 2
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|ofProcess), &used); err != nil {
		return 0, fmt.Errorf("CPU time of process %d: %w", pid, err)
	}
	return time.Duration(used.Nano()), nil
}

// ChildrenTime is what the programs that a process ran and waited for have used, such as iptables-save.
func ChildrenTime(t T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatalf("%v", err)
	}
	// The program's name, in parentheses, may hold anything. The two times are the 14th and 15th field behind it.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	return ticks(t, fields[13:15])
}

// IdleTime is what the CPUs have waited so far.
func IdleTime(t T) time.Duration {
	t.Helper()
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatalf("%v", err)
	}
	fields := strings.Fields(string(text)) // cpu user nice system idle iowait
	return ticks(t, fields[4:6])
}

// ticks adds up CPU times from /proc.
func ticks(t T, fields []string) time.Duration {
	t.Helper()
	var total time.Duration
	for _, field := range fields {
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatalf("a time in /proc: %v", err)
		}
		total += time.Duration(n) * (time.Second / 100)
	}
	return total
}
