package nodelock

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/kube-ipvs/kube-ipvs/internal/rundir"
)

// agentSocket is the name of an abstract socket. Such names belong to a network namespace, like the kernel tables that
// an agent writes.
const agentSocket = "@kube-ipvs/agent"

type socket struct{ *net.UnixListener }

func (s *socket) close() error {
	if s == nil {
		return nil
	}
	return s.Close()
}

// bind returns a takenError if another process uses the name.
func bind(name string) (*socket, error) {
	address := &net.UnixAddr{Name: name, Net: "unix"}
	listener, err := net.ListenUnix("unix", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		by := peer(address)
		if by != nil {
			return nil, &takenError{name, by}
		}
		listener, err = net.ListenUnix("unix", address) // retry, because the process may just have ended
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, &takenError{name, nil}
	}
	if err != nil {
		return nil, fmt.Errorf("acquire the node lock: %w", err)
	}
	return &socket{listener}, nil
}

type takenError struct {
	name string
	// by is nil if the process does not listen on the socket. Every agent listens.
	by *syscall.Ucred
}

func (e *takenError) Error() string { return fmt.Sprintf("%v (%s)", ErrHeld, e.process()) }

// Is makes errors.Is treat a takenError as ErrHeld, because the process may be an agent.
func (e *takenError) Is(target error) bool { return target == ErrHeld }

// mayBeAgent reports whether the process runs as root. It may still be a root process that is not an agent, for example in
// a pod with the host's network.
func (e *takenError) mayBeAgent() bool { return e.by != nil && rundir.Trusted(e.by.Uid) }

func (e *takenError) ignored() error {
	return fmt.Errorf("the socket %s is held by %s, which does not hold the lock on the file; ignoring the socket", e.name, e.process())
}

func (e *takenError) process() string {
	if e.by == nil {
		return "a process that does not listen on it"
	}
	if e.by.Pid == 0 {
		return fmt.Sprintf("a process in another container, user %d", e.by.Uid)
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", e.by.Pid))
	if err != nil {
		return fmt.Sprintf("process %d, user %d", e.by.Pid, e.by.Uid)
	}
	return fmt.Sprintf("%q, process %d, user %d", strings.TrimSpace(string(name)), e.by.Pid, e.by.Uid)
}

// peer returns the credentials of the process that listens on the socket, as recorded by the kernel.
func peer(address *net.UnixAddr) (by *syscall.Ucred) {
	conn, err := net.DialUnix("unix", nil, address)
	if err != nil {
		return nil
	}
	defer conn.Close()
	by, _ = rundir.Peer(conn)
	return by
}
