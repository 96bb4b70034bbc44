package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// processLimit bounds a process where the caller's context does not. A save of 100,000 foreign rules takes seconds.
	processLimit = 30 * time.Second
	// lockWait is how many seconds a command waits for the xtables lock. After that the caller decides.
	lockWait = 5
)

// Stats counts what the backend did.
type Stats struct {
	// Processes started, without those that go-iptables starts in turn for one deletion.
	Processes uint64
}

// runner starts processes.
type runner struct{ started atomic.Uint64 }

// result is what a process that could be started left behind.
type result struct {
	stdout, stderr string
}

// processError is a process that failed.
type processError struct {
	command string
	stderr  string
	err     error
}

func (e *processError) Error() string {
	if text := strings.TrimSpace(e.stderr); text != "" {
		return fmt.Sprintf("%s: %s (%v)", e.command, text, e.err)
	}
	return fmt.Sprintf("%s: %v", e.command, e.err)
}

func (e *processError) Unwrap() error { return e.err }

// run starts a command with the given input and waits for its end. When the context ends, the command and what it started
// (modprobe) is killed.
func (r *runner) run(ctx context.Context, stdin, name string, args ...string) (result, error) {
	ctx, cancel := context.WithTimeout(ctx, processLimit)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // a grandchild may hold the pipes
	r.started.Add(1)
	err := cmd.Run()
	if err != nil {
		if ctx.Err() != nil {
			err = errors.Join(ctx.Err(), err)
		}
		err = &processError{command: name, stderr: stderr.String(), err: err}
	}
	return result{stdout: stdout.String(), stderr: stderr.String()}, err
}
