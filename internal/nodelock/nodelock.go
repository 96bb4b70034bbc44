// Package nodelock limits a node to one agent at a time. Two agents with different Services would continuously revert
// each other's changes.
//
// The agent locks a file that only root can open. It also binds an abstract socket, for agents that do not share the
// file's directory, such as an agent in a container without the host's /run/kube-ipvs. Any local process can bind that
// socket, so the socket is only advisory: an agent never waits long for it.
//
// May import: rundir, the standard library and unix.
package nodelock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/rundir"
)

const (
	// pollInterval is the interval at which a waiting agent retries. A blocking flock would ignore the context.
	pollInterval = 200 * time.Millisecond
	// socketPatience is how long an agent that holds the lock waits for the socket. An agent that is being replaced exits
	// sooner.
	socketPatience = 30 * time.Second
)

// ErrHeld means that another process holds the lock in this network namespace.
var ErrHeld = errors.New("another kube-ipvs is running on this node")

// Lock is the node lock held by this process. The kernel releases it when the process ends.
type Lock struct {
	// Ignored describes another process that holds the socket, or is nil if this lock holds it.
	Ignored error

	file   *os.File
	socket *socket
}

// TryAcquire acquires the lock if it is free. Otherwise it returns ErrHeld, which names the process that holds the
// lock.
func TryAcquire() (*Lock, error) {
	p, err := thisNode()
	if err != nil {
		return nil, err
	}
	return p.tryAcquire()
}

// Acquire waits for the lock. While another process holds it, Acquire calls waiting with an ErrHeld, and again
// whenever the error text changes.
func Acquire(ctx context.Context, waiting func(error)) (*Lock, error) {
	p, err := thisNode()
	if err != nil {
		return nil, err
	}
	return p.acquire(ctx, waiting)
}

// Release frees the lock.
func (l *Lock) Release() error { return errors.Join(l.socket.close(), l.file.Close()) }

type place struct {
	dir, file string
	socket    string
	patience  time.Duration
}

// thisNode returns the lock of this network namespace. Like the kernel tables that an agent writes, the lock is per
// network namespace. The holder never removes the file, because that would race with the next holder. A reboot
// empties /run.
func thisNode() (place, error) {
	path, err := rundir.OfThisNetwork("node-", ".lock")
	if err != nil {
		return place{}, fmt.Errorf("acquire the node lock: %w", err)
	}
	return place{filepath.Dir(path), filepath.Base(path), agentSocket, socketPatience}, nil
}

func (p place) tryAcquire() (*Lock, error) {
	file, err := p.tryLock()
	if err != nil {
		return nil, err
	}
	socket, err := bind(p.socket)
	var taken *takenError
	switch {
	case errors.As(err, &taken) && !taken.mayBeAgent():
		return &Lock{Ignored: taken.ignored(), file: file}, nil
	case err != nil:
		return nil, errors.Join(err, file.Close())
	}
	return &Lock{file: file, socket: socket}, nil
}

func (p place) acquire(ctx context.Context, waiting func(error)) (*Lock, error) {
	report := changes(waiting)
	file, err := retry(ctx, report, p.tryLock)
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(p.patience)
	lock := &Lock{file: file}
	lock.socket, err = retry(ctx, report, func() (*socket, error) {
		s, err := bind(p.socket)
		var taken *takenError
		if errors.As(err, &taken) && (!taken.mayBeAgent() || time.Now().After(deadline)) {
			lock.Ignored = taken.ignored()
			return nil, nil
		}
		return s, err
	})
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return lock, nil
}

// changes returns a function that calls report only if the error text differs from the previous one.
func changes(report func(error)) func(error) {
	last := ""
	return func(err error) {
		if text := err.Error(); text != last {
			last = text
			report(err)
		}
	}
}

// retry calls try until it returns something other than ErrHeld.
func retry[T any](ctx context.Context, waiting func(error), try func() (T, error)) (T, error) {
	for {
		got, err := try()
		if !errors.Is(err, ErrHeld) {
			return got, err
		}
		waiting(err)
		select {
		case <-ctx.Done():
			return got, ctx.Err()
		case <-time.After(pollInterval):
		}
	}
}
