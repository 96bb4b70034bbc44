package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const kernelLogName = "dmesg.txt"

// Bits of /proc/sys/kernel/tainted that indicate a kernel bug.
const (
	taintDie        = 1 << 7
	taintWarn       = 1 << 9
	taintSoftLockup = 1 << 14
)

// saveKernelLog writes the kernel's log to the results directory. It returns an excerpt if the log reports a bug.
func saveKernelLog(dir string) string {
	size, err := unix.Klogctl(unix.SYSLOG_ACTION_SIZE_BUFFER, nil)
	if err != nil {
		return ""
	}
	buffer := make([]byte, size)
	n, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, buffer)
	if err != nil {
		return ""
	}
	log := string(buffer[:n])
	_ = os.WriteFile(filepath.Join(dir, kernelLogName), buffer[:n], 0o644)
	return kernelTrouble(taints(), log)
}

func taints() uint64 {
	text, err := os.ReadFile("/proc/sys/kernel/tainted")
	if err != nil {
		return 0
	}
	value, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0
	}
	return value
}

// kernelTrouble returns the lines around the first sign of a kernel bug, or "" if there is none.
func kernelTrouble(taint uint64, log string) string {
	const excerpt = 25
	lines := strings.Split(log, "\n")
	for i, line := range lines {
		if isTrouble(line) {
			return strings.Join(lines[i:min(i+excerpt, len(lines))], "\n")
		}
	}
	if taint&(taintDie|taintWarn|taintSoftLockup) != 0 {
		return "the kernel is tainted (" + strconv.FormatUint(taint, 10) + "), but its log no longer shows the cause"
	}
	return ""
}

func isTrouble(line string) bool {
	for _, sign := range []string{"BUG:", "kernel BUG at", "WARNING: CPU:", "Oops:", "general protection fault", "Kernel panic",
		"INFO: task ", "refcount_t:", "unregister_netdevice: waiting", "Internal error:", "Out of memory:"} {
		if strings.Contains(line, sign) {
			return true
		}
	}
	return false
}
