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

// A resident guest runs jobs in sequence: "lab up" starts it and keeps running, and run, shell and kernel-test of the same clone
// find it by its socket's name. The keeper, which is "lab up", passes frames between the job's lab and the guest's port.

// bootTime is how long a resident guest may take until its hello frame.
const bootTime = time.Minute

// socketName returns the name of the resident guest's socket. It is abstract, so it needs no cleanup. Each self-test has its own.
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
		return 0, userErrorf("a resident guest of this clone is up already; use make lab-down to end it")
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
		return 0, userErrorf("a resident guest needs user-mode Linux, which is unavailable: %v", err)
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
		notice("this clone has no resident guest")
		return 0, nil
	}
	defer conn.Close()
	if err := (&frameWriter{w: conn}).write(frameStop, nil); err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, conn) // until the keeper ends
	return 0, err
}

// dialResident connects to the resident guest of this clone. It returns nil if there is none.
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
		return nil, userErrorf("another user's program listens on the socket of this clone's resident guest, %s", name)
	}
	return conn, err
}

// keeper is the host's end of a resident guest.
type keeper struct {
	machine *machine
	release string
	socket  net.Listener
}

// keep relays jobs until the guest or the keeper ends.
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
		return fmt.Errorf("the guest sent frame %q before hello", kind)
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
			return nil // the caller's connection ends when this process does
		default:
			if err := k.run(conn, kind, payload); err != nil {
				return err
			}
		}
	}
}

// run relays one job's frames in both directions until its exit report.
func (k *keeper) run(conn net.Conn, kind frameKind, payload []byte) error {
	guest := &frameWriter{w: k.machine.port}
	if err := guest.write(kind, payload); err != nil {
		return err
	}
	var orders sync.WaitGroup
	defer orders.Wait() // its last frame must not reach the next job
	defer conn.Close()
	orders.Go(func() {
		for {
			kind, payload, err := readFrame(conn)
			if err != nil {
				kind = frameEnd // ignored if the job has already ended
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
		_ = client.write(kind, payload) // a lost client has already made the guest end the job
		if kind == frameExit {
			return nil
		}
	}
}

// sameUser reports whether the peer of a connection is a process of this user.
func sameUser(conn net.Conn) bool {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return false
	}
	var peer *unix.Ucred
	failed := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return failed == nil && err == nil && int(peer.Uid) == os.Getuid()
}

// runResident runs a job in a suitable resident guest, if there is one.
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
		return 0, true, userErrorf("the resident guest can write only to directories in %s; unset OUT, or use make lab-down", base)
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
		lastWords: func() string { return "see the output of make lab-up" }}
	file, err := writeUMLSpec(spec) // some environments do not fit into a frame
	if err != nil {
		return 0, true, err
	}
	if err := v.session.out.write(frameJob, []byte(file)); err != nil {
		return 0, true, err
	}
	status, keep, err := v.run(j)
	return status, true, firstError(err, out.close(keep))
}

// residentWillDo reports whether the resident guest can satisfy the options.
func (o options) residentWillDo() bool {
	return (o.mode == "auto" || o.mode == modeFast || o.mode == modeUML) && o.accel == "auto" && !o.kernelNamed && !o.virtual()
}
