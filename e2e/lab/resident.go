package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A resident guest runs one job after the other: "lab up" starts it and stays, and run, shell and kernel-test of the same clone find
// it by the name of its socket. The keeper, which is "lab up", passes frames between the job's lab and the guest's port.

// bootTime is how long a resident guest may take to say hello.
const bootTime = time.Minute

// socketName is the name of the resident guest's socket. It is an abstract one, which needs no clean-up. Each self-test has its own.
func socketName() (string, error) {
	root, err := repoRoot()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("@kube-ipvs-lab-%d-%x", os.Getuid(), sha256.Sum256([]byte(root+os.Getenv("LAB_SELFTEST_MARK")))), nil
}

// upCommand starts a resident guest and keeps it until "lab down", a signal, or the end of its parent.
func upCommand(args []string) (int, error) {
	opts, ahead, err := parseRunFlags("up", 0, args)
	if err != nil {
		return 0, err
	}
	if err := dieWithParent(); err != nil {
		return 0, err
	}
	name, err := socketName()
	if err != nil {
		return 0, err
	}
	socket, err := net.Listen("unix", name)
	if errors.Is(err, unix.EADDRINUSE) {
		return 0, userErrorf("a resident guest of this clone is up already; make lab-down ends it")
	}
	if err != nil {
		return 0, err
	}
	defer socket.Close()
	addSbin()
	if err := ensurePrograms(labPrograms); err != nil {
		return 0, err
	}
	k, err := findUML()
	if err != nil {
		return 0, userErrorf("a resident guest is user-mode Linux, which cannot be had here: %v", err)
	}
	out, err := localDir("out")
	if err != nil {
		return 0, err
	}
	c := machineConfig{kernel: k, accel: modeUML, mem: opts.mem}
	c.spec = job{args: ahead}.guestSpec(k, out)
	c.spec.Resident = true
	c.spec.Env = append(c.spec.Env, withoutPreemption())
	m, err := c.start()
	if err != nil {
		return 0, err
	}
	defer m.kill()
	return (&keeper{machine: m, release: k.release, socket: socket}).keep(notifyStops())
}

// downCommand ends the resident guest of this clone.
func downCommand([]string) (int, error) {
	conn, err := dialResident()
	if err != nil {
		return 0, err
	}
	if conn == nil {
		notice("no resident guest of this clone is up")
		return 0, nil
	}
	defer conn.Close()
	if err := (&frameWriter{w: conn}).write(frameStop, nil); err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, conn) // until the keeper is gone
	return 0, err
}

// dialResident connects to the resident guest of this clone; nil if there is none.
func dialResident() (net.Conn, error) {
	name, err := socketName()
	if err != nil {
		return nil, err
	}
	conn, err := net.Dial("unix", name)
	if errors.Is(err, unix.ECONNREFUSED) {
		return nil, nil
	}
	if err == nil && !sameUser(conn) {
		conn.Close()
		return nil, userErrorf("another user's program listens at the socket of this clone's resident guest, %s", name)
	}
	return conn, err
}

// keeper is the host's end of a resident guest.
type keeper struct {
	machine *machine
	release string
	socket  net.Listener
}

// keep passes jobs on until the end of the guest or of the keeper.
func (k *keeper) keep(stops <-chan os.Signal) (int, error) {
	if err := k.awaitHello(); err != nil {
		return 0, err
	}
	notice("the resident guest is up, kernel %s (user-mode Linux); make lab-down or Ctrl-C ends it", k.release)
	served := make(chan error, 1)
	go func() { served <- k.serve() }()
	select {
	case err := <-served:
		return 0, err
	case <-k.machine.ended:
		return 0, fmt.Errorf("the guest ended; its last words:\n%s", k.machine.lastWords())
	case sig := <-stops:
		return 128 + int(sig.(syscall.Signal)), nil
	}
}

func (k *keeper) awaitHello() error {
	_ = k.machine.port.SetReadDeadline(time.Now().Add(bootTime))
	kind, _, err := readFrame(k.machine.port)
	if err != nil {
		return fmt.Errorf("the guest did not start: %w; its last words:\n%s", err, k.machine.lastWords())
	}
	if kind != frameHello {
		return fmt.Errorf("the guest said %q before hello", kind)
	}
	return k.machine.port.SetReadDeadline(time.Time{})
}

// serve takes one job at a time; others wait in the socket's queue. It returns when it is told to end the guest.
func (k *keeper) serve() error {
	for {
		conn, err := k.socket.Accept()
		if err != nil {
			return err
		}
		if !sameUser(conn) {
			conn.Close()
			continue
		}
		kind, payload, err := readFrame(conn)
		switch {
		case err != nil:
			conn.Close()
		case kind == frameStop:
			return nil // the caller sees our end as the end of its connection
		default:
			if err := k.run(conn, kind, payload); err != nil {
				return err
			}
		}
	}
}

// run passes one job's frames in both directions until its exit report.
func (k *keeper) run(conn net.Conn, kind frameKind, payload []byte) error {
	guest := &frameWriter{w: k.machine.port}
	if err := guest.write(kind, payload); err != nil {
		return err
	}
	var orders sync.WaitGroup
	defer orders.Wait() // its last frame must not meet the next job
	defer conn.Close()
	orders.Go(func() {
		for {
			kind, payload, err := readFrame(conn)
			if err != nil {
				kind = frameEnd // after the job's own end, the guest ignores it
			}
			if guest.write(kind, payload) != nil || err != nil {
				return
			}
		}
	})
	client := &frameWriter{w: conn}
	for {
		kind, payload, err := readFrame(k.machine.port)
		if err != nil {
			return err
		}
		_ = client.write(kind, payload) // a client that is gone has made the guest end the job
		if kind == frameExit {
			return nil
		}
	}
}

// sameUser reports whether a connection is from a process of this user.
func sameUser(conn net.Conn) bool {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return false
	}
	var peer *unix.Ucred
	failed := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return failed == nil && err == nil && int(peer.Uid) == os.Getuid()
}

// runResident runs a job in the resident guest, if there is one that suits it.
func runResident(opts options, j job) (status int, taken bool, err error) {
	if !opts.residentWillDo() {
		return 0, false, nil
	}
	conn, err := dialResident()
	if err != nil || conn == nil {
		return 0, false, err
	}
	defer conn.Close()
	out, err := openResults(opts.out)
	if err != nil {
		return 0, true, err
	}
	base, err := localDir("out")
	if err != nil {
		return 0, true, err
	}
	if !strings.HasPrefix(out.path, base+"/") {
		return 0, true, userErrorf("the resident guest can write to folders in %s only: leave OUT away, or end it with make lab-down", base)
	}
	k, err := findUML()
	if err != nil {
		return 0, true, err
	}
	notice("uml, kernel %s (the resident guest)", k.release)
	spec := j.guestSpec(k, out.path)
	spec.Env = append(spec.Env, labEnv(modeUML, k.release, out.path)...)
	spec.Env = append(spec.Env, withoutPreemption(), "LAB_RESIDENT=1")
	v := conversation{session: newSession(conn), out: out.path, timeout: opts.timeout, stops: notifyStops(),
		lastWords: func() string { return "see where make lab-up runs" }}
	file, err := writeUMLSpec(spec) // a frame is too small for some environments
	if err != nil {
		return 0, true, err
	}
	if err := v.session.out.write(frameJob, []byte(file)); err != nil {
		return 0, true, err
	}
	status, keep, err := v.run(j)
	return status, true, firstError(err, out.close(keep))
}

// residentWillDo reports whether nothing was asked for that only another lab has.
func (o options) residentWillDo() bool {
	return (o.mode == "auto" || o.mode == modeFast || o.mode == modeUML) && o.accel == "auto" && !o.kernelNamed
}
