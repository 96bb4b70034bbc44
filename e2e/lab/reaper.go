package main

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// superviseAsInit runs a program and returns its status as a shell would. Meanwhile this process reaps orphans,
// because it is the first process of its PID namespace. The program inherits the standard files and the given files,
// which must be numbered from 3 without a gap.
func superviseAsInit(path string, argv, env []string, dir string, files ...uintptr) (int, error) {
	pid, err := syscall.ForkExec(path, argv, &syscall.ProcAttr{Dir: dir, Env: env, Files: append([]uintptr{0, 1, 2}, files...)})
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", argv[0], err)
	}
	for {
		var status unix.WaitStatus
		done, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0, os.NewSyscallError("wait4", err)
		case done == pid:
			return shellStatus(syscall.WaitStatus(status)), nil
		}
	}
}

// shellStatus returns the exit status, or 128+n after signal n.
func shellStatus(s syscall.WaitStatus) int {
	if s.Signaled() {
		return 128 + int(s.Signal())
	}
	return s.ExitStatus()
}
