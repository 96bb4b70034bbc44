package live

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel/ownthread"
)

// thread runs jobs one at a time on a dedicated OS thread. Closing the channel ends the thread.
type thread chan func()

// newThread starts a thread in the network namespace of the calling thread.
func newThread() (thread, error) { return newThreadAt(0) }

// newBackgroundThread starts a thread with a low priority, for jobs that take a long time. Programs that its jobs start inherit the priority.
func newBackgroundThread() (thread, error) {
	const nice = 10
	return newThreadAt(nice)
}

func newThreadAt(nice int) (thread, error) {
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("open this network namespace: %w", err)
	}
	defer ns.Close()
	t, ready := make(thread), make(chan error)
	ownthread.Go(func() { t.work(ns, nice, ready) }) // it may be in a different namespace than the rest of the process
	return t, <-ready
}

func (t thread) work(ns *os.File, nice int, ready chan<- error) {
	if err := enter(ns); err != nil {
		ready <- err
		return
	}
	if nice > 0 {
		_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), nice) // if this fails, jobs delay other work for longer
	}
	ready <- nil
	for job := range t {
		job()
	}
}

func (t thread) do(job func()) {
	done := make(chan struct{})
	t <- func() {
		defer close(done)
		job()
	}
	<-done
}

// endGrace is how long a job may take to end after its context ends.
const endGrace = 5 * time.Second

// doFor runs a job, but does not wait much longer than its context lasts. If the context ends first, doFor returns an error and the job
// continues. Until the job ends, no other job begins, and the caller must not use what it writes.
func (t thread) doFor(ctx context.Context, job func()) error {
	done := make(chan struct{})
	select {
	case t <- func() { defer close(done); job() }:
	case <-ctx.Done():
		return fmt.Errorf("an earlier program is still running: %w", ctx.Err())
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-done:
		return nil
	case <-time.After(endGrace):
		return fmt.Errorf("a program has not ended: %w", ctx.Err())
	}
}

// enter moves the calling thread to a network namespace. It does nothing if the thread is already there, because entering requires a
// capability that the agent may lack.
func enter(ns *os.File) error {
	here, err := os.Stat("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	there, err := ns.Stat()
	if err != nil || os.SameFile(here, there) {
		return err
	}
	return unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
}
