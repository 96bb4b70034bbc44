package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// process is a child that does not outlive this process.
type process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when the child has exited and been reaped
	err  error         // reason for the exit; read after done
}

// startProcess starts a command and appends its output to the log file.
func startProcess(log string, argv []string) (*process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	defer file.Close() // the child has its own copy
	p := &process{cmd: exec.Command(argv[0], argv[1:]...), log: log, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = file, file
	p.cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL, // so that even a crashed test leaves nothing behind
		Setpgid:   true,            // so that Ctrl-C reaches only the test, which then stops the child
	}
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	return p, nil
}

// run starts the child and waits for it on one thread. The kernel sends the death signal when the forking thread
// ends, and tests that switch namespaces do end threads.
func (p *process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	p.err = p.cmd.Wait()
	close(p.done)
}

// await calls probe until it succeeds, the child dies or ctx ends.
func (p *process) await(ctx context.Context, probe func(context.Context) error) error {
	const pause = 20 * time.Millisecond
	for {
		last := probe(ctx)
		if last == nil {
			return nil
		}
		select {
		case <-p.done:
			return p.failure("%s ended while starting (%v)", p.name(), p.err)
		case <-ctx.Done():
			return p.failure("%s is not ready (%w): %w", p.name(), ctx.Err(), last)
		case <-time.After(pause):
		}
	}
}

func (p *process) failure(format string, args ...any) error {
	return errors.Join(fmt.Errorf(format, args...), fmt.Errorf("end of %s:\n%s", p.log, tail(p.log)))
}

func (p *process) name() string { return strings.TrimSuffix(filepath.Base(p.log), ".log") }

// stop kills the child if it does not exit within grace.
func (p *process) stop(grace time.Duration) {
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(grace):
		p.kill()
	}
}

// kill also kills everything that the child started.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// signal does nothing if the child has exited, because its PID may have been reused.
func (p *process) signal(s syscall.Signal) {
	select {
	case <-p.done:
	default:
		_ = syscall.Kill(-p.cmd.Process.Pid, s) // fails only if the group has already ended
	}
}

// tail returns the last lines of a log, or why there are none.
func tail(path string) string {
	const most = 4 << 10
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	if len(content) > most {
		content = content[len(content)-most:]
		if _, rest, cut := bytes.Cut(content, []byte("\n")); cut { // the first line is incomplete
			content = rest
		}
	}
	return strings.TrimRight(string(content), "\n")
}
