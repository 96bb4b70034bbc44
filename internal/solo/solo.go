// Package solo makes sure that one agent only works on a node: two of them, with different Services, would undo each other's
// work for ever.
//
// May import: the standard library and unix.
package solo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"

	"golang.org/x/sys/unix"
)

// name is that of an abstract socket. Such names belong to a network namespace, as do the tables that an agent works on, and
// the kernel takes them back when the process ends, however it ends. No file is left behind, and none is needed.
const name = "@kube-ipvs/agent"

// ErrTaken says that another agent works in this network namespace.
var ErrTaken = errors.New("another kube-ipvs works on this node")

// seat is a name that one process at a time can have.
type seat string

// Place is the right to be the one that works here.
type Place struct{ listener *net.UnixListener }

// Take takes the place if it is free. Otherwise its error is ErrTaken and names the process that has it.
func Take() (*Place, error) { return seat(name).take() }

func (s seat) take() (*Place, error) {
	listener, err := net.ListenUnix("unix", s.address())
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return nil, fmt.Errorf("%w%s", ErrTaken, s.holder())
	case err != nil:
		return nil, fmt.Errorf("look for another kube-ipvs on this node: %w", err)
	}
	return &Place{listener}, nil
}

// Await takes the place as soon as it is free, and calls waiting, once, if it has to wait.
func Await(ctx context.Context, waiting func(error)) (*Place, error) {
	return seat(name).await(ctx, waiting)
}

func (s seat) await(ctx context.Context, waiting func(error)) (*Place, error) {
	for {
		place, err := s.take()
		if !errors.Is(err, ErrTaken) {
			return place, err
		}
		if waiting != nil {
			waiting(err)
			waiting = nil
		}
		if err := s.awaitEnd(ctx); err != nil {
			return nil, err
		}
	}
}

// Leave gives the place back.
func (p *Place) Leave() error { return p.listener.Close() }

func (s seat) address() *net.UnixAddr { return &net.UnixAddr{Name: string(s), Net: "unix"} }

// awaitEnd waits until whoever has the place ends. Nobody ever answers on the socket: the connection lasts as long as it does.
func (s seat) awaitEnd(ctx context.Context) error {
	conn, err := net.DialUnix("unix", nil, s.address())
	if err != nil {
		return ctx.Err() // gone already
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	_, _ = io.Copy(io.Discard, conn)
	return ctx.Err()
}

// holder names the process that has the place, as the kernel knows it.
func (s seat) holder() string {
	conn, err := net.DialUnix("unix", nil, s.address())
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
