// Package nodelock lets one agent at a time work on a node. Two agents with different Services would keep undoing each other's
// work.
//
// May import: the standard library and unix.
package nodelock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"

	"golang.org/x/sys/unix"
)

// agentSocket is the name of an abstract socket. Such names belong to a network namespace, as do the kernel tables that an agent
// writes, and the kernel releases them when the process ends, however it ends. No file is left behind.
const agentSocket = "@kube-ipvs/agent"

// ErrHeld means that another process holds the lock in this network namespace.
var ErrHeld = errors.New("another kube-ipvs is running on this node")

// Lock is the node lock, held.
type Lock struct{ listener *net.UnixListener }

// TryAcquire takes the lock if it is free. Otherwise it returns ErrHeld, which names the process that holds the lock.
func TryAcquire() (*Lock, error) { return socketName(agentSocket).tryAcquire() }

// Acquire waits for the lock. If another process holds it, waiting is called once with ErrHeld.
func Acquire(ctx context.Context, waiting func(error)) (*Lock, error) {
	return socketName(agentSocket).acquire(ctx, waiting)
}

// Release frees the lock.
func (l *Lock) Release() error { return l.listener.Close() }

// socketName is a name that one socket at a time can have.
type socketName string

func (n socketName) tryAcquire() (*Lock, error) {
	listener, err := net.ListenUnix("unix", n.address())
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return nil, fmt.Errorf("%w%s", ErrHeld, n.holder())
	case err != nil:
		return nil, fmt.Errorf("take the node lock: %w", err)
	}
	return &Lock{listener}, nil
}

func (n socketName) acquire(ctx context.Context, waiting func(error)) (*Lock, error) {
	for {
		lock, err := n.tryAcquire()
		if !errors.Is(err, ErrHeld) {
			return lock, err
		}
		if waiting != nil {
			waiting(err)
			waiting = nil
		}
		if err := n.awaitRelease(ctx); err != nil {
			return nil, err
		}
	}
}

func (n socketName) address() *net.UnixAddr { return &net.UnixAddr{Name: string(n), Net: "unix"} }

// awaitRelease blocks until the holder ends. The holder never accepts: the connection stays open until its socket is closed.
func (n socketName) awaitRelease(ctx context.Context) error {
	conn, err := net.DialUnix("unix", nil, n.address())
	if err != nil {
		return ctx.Err() // released already
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	_, _ = io.Copy(io.Discard, conn)
	return ctx.Err()
}

// holder is " (process 42)", from the kernel's record of the socket; empty if the kernel does not know.
func (n socketName) holder() string {
	conn, err := net.DialUnix("unix", nil, n.address())
	if err != nil {
		return ""
	}
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err != nil {
		return ""
	}
	pid := ""
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = " (process " + strconv.Itoa(int(cred.Pid)) + ")"
		}
	})
	return pid
}
