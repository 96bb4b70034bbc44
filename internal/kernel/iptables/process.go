package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

const (
	// shortest and longest bound the time after which a hung process is killed. Saving 100,000 foreign rules takes seconds, or a minute on a
	// slow node.
	shortest, longest = 30 * time.Second, 10 * time.Minute
	// lockWait is how many seconds a command waits for the xtables lock. After that, the caller decides whether to retry.
	lockWait = 5
)

// LockWait is how long a Read or Ensure may wait for the xtables lock.
const LockWait = lockWait * time.Second

type runner struct {
	started atomic.Uint64
	limits  killLimits
	// left contains each program whose process did not end when it was killed. The value reports whether the process has ended since. Until
	// then, the agent does not start the program again.
	left sync.Map
}

// killDelay is how long a killed process may take to exit and close its pipes. A process in uninterruptible sleep exits only when it wakes up.
const killDelay = 3 * time.Second

var errUnkillable = errors.New("the process was killed, but has not ended; check the kernel log for what it is waiting for")

// When the context ends and the process is killed, wait waits at most killDelay longer.
func (r *runner) wait(ctx context.Context, program string, wait func() error) error {
	done, ended := make(chan error, 1), &atomic.Bool{}
	go func() {
		err := wait()
		ended.Store(true)
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(killDelay):
	}
	r.left.Store(program, ended)
	return errUnkillable
}

// killLimits contains the time after which each program is killed. A slow program would never finish if it were always killed after the
// same time, so each kill doubles its limit. A successful run sets the limit to several times the run's duration.
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

type result struct {
	stdout, stderr string
}

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

// save runs one command that prints all tables of a variant. With -t, iptables-legacy-save would create the table that it prints. If this
// thread's network namespace has no legacy tables, which is the normal case, save starts no program. It returns an error if a table or its
// COMMIT line is missing from the output.
func (r *runner) save(ctx context.Context, v Variant, f inet.Family) (result, error) {
	tables, err := kernelTables(ctx, v, f)
	if err != nil || v == Legacy && len(tables) == 0 {
		return result{}, errors.Join(err, ctx.Err())
	}
	program := v.command(f, "-save")
	out, err := r.run(ctx, "", program)
	if err == nil {
		err = complete(program, out.stdout, tables)
	}
	return out, err
}

func complete(program, text string, tables []string) error {
	ended, table := map[string]bool{}, ""
	for line := range strings.Lines(text) {
		switch line = strings.TrimSuffix(line, "\n"); {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
		case line == "COMMIT":
			ended[table] = true
		case strings.HasPrefix(line, incompatiblePrefix): // parseSave returns an error if the table matters
			name, _ := incompatible(line)
			ended[name] = true
		}
	}
	for _, table := range tables {
		if !ended[table] {
			return &processError{command: program, err: fmt.Errorf("table %s or its end is missing from the output", table)}
		}
	}
	return nil
}

func kernelTables(ctx context.Context, v Variant, f inet.Family) ([]string, error) {
	if v == Legacy {
		tables, err := os.ReadFile(legacyTables[f])
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("list tables of iptables-legacy: %w", err)
		}
		return strings.Fields(string(tables)), nil
	}
	tables := slices.Sorted(maps.Keys(allTables))
	objects := make([]nftObject, len(tables))
	for i, table := range tables {
		objects[i].table = table
	}
	exist, err := inNFT(ctx, f, objects)
	if err != nil {
		return nil, err
	}
	var found []string
	for i, table := range tables {
		if exist[i] {
			found = append(found, table)
		}
	}
	return found, nil
}

var legacyTables = map[inet.Family]string{
	inet.IPv4: "/proc/thread-self/net/ip_tables_names",
	inet.IPv6: "/proc/thread-self/net/ip6_tables_names",
}

// maxOutput limits the output of a program. It is enough for 400,000 rules.
const maxOutput = 64 << 20

type output struct {
	text    bytes.Buffer
	tooLong bool
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.ReadFrom(bytes.NewReader(p))
	return int(n), err
}

// ReadFrom avoids the buffer that io.Copy would allocate.
func (o *output) ReadFrom(r io.Reader) (int64, error) {
	n, err := o.text.ReadFrom(io.LimitReader(r, int64(maxOutput-o.text.Len()+1)))
	if o.tooLong = o.text.Len() > maxOutput; o.tooLong {
		err = errTooLong
	}
	return n, err
}

var errTooLong = fmt.Errorf("the output is longer than %d MiB", maxOutput>>20)

var errHung = errors.New("no answer")

// When the context ends, run kills the command and its children (modprobe).
func (r *runner) run(ctx context.Context, stdin, name string, args ...string) (result, error) {
	began, limit := time.Now(), r.limits.get(name)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errHung)
	defer cancel()
	var stdout, stderr output
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // a grandchild may keep the pipes open
	if earlier, left := r.left.Load(name); left && !earlier.(*atomic.Bool).Load() {
		return result{}, &processError{command: name, err: errUnkillable}
	}
	r.started.Add(1)
	err := cmd.Start()
	if err == nil {
		err = r.wait(ctx, name, cmd.Wait)
	}
	switch {
	case errors.Is(err, errUnkillable): // the process may still be writing output
		return result{}, &processError{command: name, err: errors.Join(ctx.Err(), err)}
	case stdout.tooLong || stderr.tooLong: // the process has ended because its pipe broke
		return result{}, &processError{command: name, err: errTooLong}
	case err == nil:
		r.limits.set(name, 4*time.Since(began))
	case errors.Is(context.Cause(ctx), errHung):
		r.limits.set(name, 2*limit)
		err = fmt.Errorf("killed after %s without an answer: %w", limit, ctx.Err())
	case ctx.Err() != nil:
		err = errors.Join(ctx.Err(), err)
	}
	if err != nil {
		err = &processError{command: name, stderr: stderr.text.String(), err: err}
	}
	return result{stdout: stdout.text.String(), stderr: stderr.text.String()}, err
}
