package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Command describes a program to run, with all options of Run and Start.
type Command struct {
	Args  []string
	Env   []string // nil: this process's environment
	Dir   string
	Stdin string

	// RunCommand kills the process after Within. The default is 60 s.
	Within time.Duration

	// SysProcAttr may set further attributes of the process: credentials, ambient capabilities, namespaces.
	SysProcAttr func(*syscall.SysProcAttr)
}

// Process is a program running in a host's network namespace.
type Process struct {
	Name string // "node-1: kube-ipvs run"
	PID  int

	log   tail
	done  chan struct{}
	err   error // set before done is closed
	mu    sync.Mutex
	ended bool // the process may have been reaped, and its PID reused
}

// spawner starts all processes of a cluster from one thread. A process receives its parent-death signal when the
// thread that started it ends, and Go may end idle threads at any time.
type spawner struct {
	mu      sync.Mutex
	stopped bool
	work    chan func()
}

func newSpawner() *spawner {
	s := &spawner{work: make(chan func())}
	go func() {
		runtime.LockOSThread() // never unlocked
		for fn := range s.work {
			fn()
		}
	}()
	return s
}

func (s *spawner) start(ns *namespace, cmd *exec.Cmd) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return errClosed
	}
	done := make(chan error)
	s.work <- func() {
		// Nothing else runs on this thread, so the thread need not return to its namespace.
		if err := unix.Setns(ns.fd(), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("entering %s: %w", ns.path, err)
			return
		}
		done <- cmd.Start()
	}
	return <-done
}

func (s *spawner) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopped {
		s.stopped = true
		close(s.work)
	}
}

// Start starts a program in the host's network namespace.
func (h *Host) Start(args ...string) (*Process, error) {
	return h.StartCommand(Command{Args: args})
}

// MustStart is like Start, but fails the test on error.
func (h *Host) MustStart(t T, args ...string) *Process {
	t.Helper()
	p, err := h.Start(args...)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return p
}

// StartCommand is like Start, but accepts all options.
func (h *Host) StartCommand(c Command) (*Process, error) {
	p := &Process{done: make(chan struct{})}
	if err := h.start(p, c, &p.log, &p.log); err != nil {
		return nil, err
	}
	return p, nil
}

func (h *Host) start(p *Process, c Command, stdout, stderr io.Writer) error {
	if len(c.Args) == 0 {
		return errors.New("no command")
	}
	p.Name = h.Name + ": " + strings.Join(c.Args, " ")
	cmd := exec.Command(c.Args[0], c.Args[1:]...)
	cmd.Env, cmd.Dir = c.Env, c.Dir
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if c.Stdin != "" {
		cmd.Stdin = strings.NewReader(c.Stdin)
	}
	cmd.WaitDelay = 2 * time.Second // a grandchild may hold the pipe open
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if c.SysProcAttr != nil {
		c.SysProcAttr(cmd.SysProcAttr)
	}
	if err := h.cluster.spawner.start(h.ns, cmd); err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	p.PID = cmd.Process.Pid
	go func() {
		// First wait without reaping, so that the PID cannot be reused until ended is set.
		for unix.Waitid(unix.P_PID, p.PID, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
		}
		p.mu.Lock()
		p.ended = true
		p.mu.Unlock()
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := h.own(p); err != nil {
		p.Kill()
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	return nil
}

// Run runs a program in the host's network namespace and returns its standard output.
func (h *Host) Run(args ...string) (string, error) {
	return h.RunCommand(Command{Args: args})
}

// MustRun is like Run, but fails the test on error.
func (h *Host) MustRun(t T, args ...string) string {
	t.Helper()
	out, err := h.Run(args...)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return out
}

// RunCommand is like Run, but accepts all options.
func (h *Host) RunCommand(c Command) (string, error) {
	if c.Within == 0 {
		c.Within = 60 * time.Second
	}
	var stdout, stderr bytes.Buffer
	p := &Process{done: make(chan struct{})}
	if err := h.start(p, c, &stdout, &stderr); err != nil {
		return "", err
	}
	defer h.disown(p)
	select {
	case <-p.done:
	case <-time.After(c.Within):
		p.Kill()
		return stdout.String(), fmt.Errorf("%s did not end within %v\n%s%s", p.Name, c.Within, &stdout, &stderr)
	}
	// A daemon in the background may hold the pipes open; this is not an error.
	if p.err != nil && !errors.Is(p.err, exec.ErrWaitDelay) {
		return stdout.String(), fmt.Errorf("%s: %w\n%s%s", p.Name, p.err, &stdout, &stderr)
	}
	return stdout.String(), nil
}

// Signal sends a signal to the program, but not to its process group.
func (p *Process) Signal(s syscall.Signal) error { return p.kill(p.PID, s) }

func (p *Process) kill(pid int, s syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return fmt.Errorf("%s: already ended", p.Name)
	}
	return syscall.Kill(pid, s)
}

// Stop sends SIGTERM to the program and kills it after the grace period.
func (p *Process) Stop(grace time.Duration) error {
	_ = p.Signal(syscall.SIGTERM)
	if err, ended := p.Wait(grace); ended {
		return err
	}
	p.Kill()
	return fmt.Errorf("%s: killed after %v", p.Name, grace)
}

// Kill sends SIGKILL to the program and its process group, and waits.
func (p *Process) Kill() {
	_ = p.kill(-p.PID, syscall.SIGKILL)
	_ = p.kill(p.PID, syscall.SIGKILL) // the program may have left the process group
	<-p.done
}

func (p *Process) abort() { p.Kill() }

// Wait waits for the program to end and returns its exit error.
func (p *Process) Wait(within time.Duration) (err error, ended bool) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.done:
		return p.err, true
	case <-timer.C:
		return nil, false
	}
}

// Running reports whether the program is running.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Log returns the last 256 KiB of the program's output.
func (p *Process) Log() string { return p.log.String() }

// AwaitLog waits until the program's output contains the text.
func (p *Process) AwaitLog(t T, within time.Duration, text string) {
	t.Helper()
	Eventually(t, within, p.Name+" logs "+text, func() error {
		switch {
		case strings.Contains(p.Log(), text):
			return nil
		case !p.Running():
			return fmt.Errorf("the process has ended: %v\n%s", p.err, p.Log()) //nolint:errorlint // nil after exit status 0
		}
		return fmt.Errorf("the text is not in the log yet:\n%s", p.Log())
	})
}

// tail keeps only the end of the data written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
	cut bool
}

const tailSize = 256 << 10

func (b *tail) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.buf = append(b.buf, p...)
	if len(b.buf) > 2*tailSize {
		b.buf = append(b.buf[:0], b.buf[len(b.buf)-tailSize:]...)
		b.cut = true
	}
	return len(p), nil
}

func (b *tail) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cut {
		return "[earlier lines cut]\n" + string(b.buf)
	}
	return string(b.buf)
}
