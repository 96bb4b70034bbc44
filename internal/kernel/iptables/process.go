package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

const (
	// shortest and longest bound the time after which a hung process is killed. Saving 100,000 foreign rules takes seconds, on a slow node a
	// minute.
	shortest, longest = 30 * time.Second, 10 * time.Minute
	// lockWait is how many seconds a command waits for the xtables lock. After that the caller decides.
	lockWait = 5
)

// LockWait is how long a Read or Ensure may wait for the xtables lock.
const LockWait = lockWait * time.Second

// Stats counts the backend's work.
type Stats struct {
	// Processes counts started processes, except those that go-iptables starts for a deletion.
	Processes uint64
}

// runner starts processes.
type runner struct {
	started atomic.Uint64
	limits  killLimits
}

// killLimits are the times after which each program is killed. A slow one would never end if it was always killed after the same time, so
// each kill doubles its limit. A success sets it to several times what that took.
type killLimits struct{ ofProgram sync.Map }

func (l *killLimits) get(program string) time.Duration {
	limit, known := l.ofProgram.Load(program)
	if !known {
		return shortest
	}
	return limit.(time.Duration)
}

func (l *killLimits) set(program string, limit time.Duration) {
	l.ofProgram.Store(program, min(max(shortest, limit), longest))
}

// result is the output of a process that could be started.
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

// save prints all tables of a variant in one command. With -t, iptables-legacy-save would create the table that it prints. Without legacy
// tables in this thread's network namespace, which is usual, it starts no program.
func (r *runner) save(ctx context.Context, v Variant, f inet.Family) (result, error) {
	if v == Legacy && !hasLegacyTables(f) {
		return result{}, ctx.Err()
	}
	return r.run(ctx, "", v.command(f, "-save"))
}

// legacyTables are the lists from which iptables-legacy-save takes the tables that it prints.
var legacyTables = map[inet.Family]string{
	inet.IPv4: "/proc/thread-self/net/ip_tables_names",
	inet.IPv6: "/proc/thread-self/net/ip6_tables_names",
}

func hasLegacyTables(f inet.Family) bool {
	tables, err := os.ReadFile(legacyTables[f])
	return len(tables) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist)
}

// errHung is why a process is killed after its limit.
var errHung = errors.New("no answer")

// run runs a command with the given input and waits for it. When the context ends, it kills the command and its children (modprobe).
func (r *runner) run(ctx context.Context, stdin, name string, args ...string) (result, error) {
	began, limit := time.Now(), r.limits.get(name)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errHung)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // a grandchild may hold the pipes
	r.started.Add(1)
	err := cmd.Run()
	switch {
	case err == nil:
		r.limits.set(name, 4*time.Since(began))
	case errors.Is(context.Cause(ctx), errHung):
		r.limits.set(name, 2*limit)
		err = fmt.Errorf("killed after %s without an answer: %w", limit, ctx.Err())
	case ctx.Err() != nil:
		err = errors.Join(ctx.Err(), err)
	}
	if err != nil {
		err = &processError{command: name, stderr: stderr.String(), err: err}
	}
	return result{stdout: stdout.String(), stderr: stderr.String()}, err
}
