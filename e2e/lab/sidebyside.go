package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// runSideBySide gives every unit its own lab, unless it shares one, and runs several labs at a time. Units start in the order of
// the command line, so the longest should come first. A lab's output appears when it ends. Each lab is another process of this
// program, so that cleanup, time limits and signals work as for a single lab.
func runSideBySide(ctx context.Context, opts options, tests testOptions, plan testPlan, work string) (int, error) {
	out, err := openResults(opts.out)
	if err != nil {
		return 0, err
	}
	run := sideBySide{opts: opts, tests: tests, plan: plan, labs: plan.labs(), work: work, out: out.path}
	units := make(chan int)
	var workers sync.WaitGroup
	for range min(tests.guests, len(run.labs)) {
		workers.Go(func() {
			for i := range units {
				run.lab(ctx, i)
			}
		})
	}
	for i := range run.labs {
		units <- i
	}
	close(units)
	workers.Wait()
	if ctx.Err() != nil {
		return 0, errors.New("interrupted")
	}
	where := fmt.Sprintf("%d labs, %d at a time", len(run.labs), min(tests.guests, len(run.labs)))
	return run.total.conclude(os.Stdout, where), out.close(!run.total.ok())
}

type sideBySide struct {
	opts  options
	tests testOptions
	plan  testPlan
	labs  [][]testUnit
	work  string // holds plans
	out   string

	mu    sync.Mutex // guards total and standard output
	total testCount
}

// lab runs the units of one lab.
func (s *sideBySide) lab(ctx context.Context, i int) {
	if ctx.Err() != nil {
		return
	}
	count, text := s.runLab(ctx, i)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total.add(count)
	_, _ = os.Stdout.Write(text)
}

// runLab runs units in a lab.
func (s *sideBySide) runLab(ctx context.Context, i int) (testCount, []byte) {
	broken := func(err error) (testCount, []byte) {
		return testCount{Broken: true}, fmt.Appendf(nil, "FAIL\t%s: %v\n", nameOf(s.labs[i]), err)
	}
	plan := s.plan
	plan.Units = slices.Clone(s.labs[i])
	for n := range plan.Units {
		if err := plan.Units[n].compile(ctx); err != nil {
			return broken(err)
		}
	}
	command, err := plan.command(filepath.Join(s.work, fmt.Sprintf("plan-%d.json", i)))
	if err != nil {
		return broken(err)
	}
	out := filepath.Join(s.out, fmt.Sprintf("%02d-%s", i, filepath.Base(plan.Units[0].Path)))
	if err := firstError(os.RemoveAll(out), os.MkdirAll(out, 0o755)); err != nil {
		return broken(err)
	}
	text, err := s.opts.lab(ctx, out, command)
	if err != nil {
		text = fmt.Appendf(text, "FAIL\t%s: %v\n", nameOf(plan.Units), err)
	}
	return readCount(out), text
}

// lab runs a command in a separate lab with these options and returns its output. The lab's exit status only repeats the result of
// the test count, unless it is one of the lab's own.
func (o options) lab(ctx context.Context, out string, command []string) ([]byte, error) {
	args := append([]string{"run", "-lab=" + o.mode, "-accel=" + o.accel, "-clock=" + o.clock, "-kernel=" + o.kernel, "-timeout=" + o.timeout.String(), "-out=" + out,
		"-mem=" + o.mem, "-cpus=" + strconv.Itoa(o.cpus), "--"}, command...)
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Cancel delivers a signal exactly once
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 {
		err = nil
	}
	return text.Bytes(), err
}
