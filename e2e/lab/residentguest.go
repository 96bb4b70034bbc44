package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// guestServeCommand is a resident guest's side of the connection, a child of its first process. It starts a process in new
// namespaces for each job and passes frames between that process and the port.
func guestServeCommand([]string) (int, error) {
	spec, err := readSpec(runSpec)
	if err != nil {
		return 0, err
	}
	port, err := spec.openPort()
	if err != nil {
		return 0, err
	}
	g := &guestServer{out: &frameWriter{w: port}, ahead: spec.Args, dir: spec.Dir}
	if err := g.out.write(frameHello, nil); err != nil {
		return 0, err
	}
	frames := make(chan frame)
	go func() {
		for {
			kind, payload, err := readFrame(port)
			if err != nil {
				os.Exit(exitBroken) // the guest ends with its first process
			}
			frames <- frame{kind, payload}
		}
	}()
	for {
		if err := g.startAhead(); err != nil {
			return 0, err
		}
		for f := range frames {
			if f.kind == frameJob {
				if err := g.run(f.payload, frames); err != nil {
					return 0, err
				}
				break
			}
		}
	}
}

type frame struct {
	kind    frameKind
	payload []byte
}

type guestServer struct {
	out   *frameWriter
	ahead []string // a program that starts before each job, in dir
	dir   string
	early *exec.Cmd // the program for the next job
}

// aheadDir is the directory in which the program started ahead of a job leaves files for it. The job finds it under the same name.
const aheadDir = "/run/lab/ahead"

// aheadLog is that program's log file in aheadDir.
const aheadLog = "log"

// startAhead ends the program of the last job and starts one for the next.
func (g *guestServer) startAhead() error {
	if g.early != nil {
		_ = unix.Kill(-g.early.Process.Pid, unix.SIGKILL) // fails if it has ended
		_ = g.early.Wait()
	}
	if err := firstError(os.RemoveAll(aheadDir), os.MkdirAll(aheadDir, 0o700)); err != nil {
		return err
	}
	if len(g.ahead) == 0 {
		return nil
	}
	g.early = exec.Command(g.ahead[0], append(g.ahead[1:], aheadDir)...)
	g.early.Dir = g.dir
	g.early.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	log, err := os.Create(filepath.Join(aheadDir, aheadLog))
	if err != nil {
		return err
	}
	defer log.Close()
	g.early.Stdout, g.early.Stderr = log, log
	return g.early.Start()
}

// run runs a job until its exit report.
func (g *guestServer) run(file []byte, frames <-chan frame) error {
	ours, theirs, err := socketPair()
	if err != nil {
		return err
	}
	defer ours.Close()
	cmd := nativeCommand("guest-job", string(file))
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	theirs.Close()
	defer func() {
		_ = cmd.Process.Kill() // this kills all processes of its namespace
		_ = cmd.Wait()
	}()
	exit := make(chan error, 1)
	go func() { exit <- g.passOutput(ours) }()
	to := &frameWriter{w: ours}
	for {
		select {
		case err := <-exit:
			return err
		case f := <-frames:
			if f.kind == frameEnd {
				_ = cmd.Process.Kill() // passOutput reports it
				continue
			}
			_ = to.write(f.kind, f.payload) // passOutput reports a job that has ended
		}
	}
}

// passOutput relays a job's frames to the port until its exit report.
func (g *guestServer) passOutput(job io.Reader) error {
	for {
		kind, payload, err := readFrame(job)
		if err != nil {
			return g.out.writeJSON(frameExit, exitReport{Status: exitBroken, Error: fmt.Sprintf("the job ended without a report: %v", err)})
		}
		if err := g.out.write(kind, payload); err != nil || kind == frameExit {
			return err
		}
	}
}

// guestJobCommand is the first process of a job's namespaces in a resident guest. It builds a new root, so that the job sees the
// host's current files.
func guestJobCommand(args []string) (int, error) {
	spec, err := readSpec(args[0])
	if err != nil {
		return 0, err
	}
	_ = os.Remove(args[0]) // leave only results
	spec.UML, spec.Job = true, true
	if _, err := os.Stat(filepath.Join(aheadDir, aheadLog)); err == nil {
		spec.Env = append(spec.Env, "KUBE_IPVS_CONTROLPLANE="+aheadDir)
	}
	ahead, err := unix.Open(aheadDir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open %s: %w", aheadDir, err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return 0, fmt.Errorf("make mounts private: %w", err)
	}
	if err := switchRoot(spec); err != nil {
		return 0, err
	}
	if err := prepareSystem(spec); err != nil {
		return 0, err
	}
	// The process started ahead of this job is in other namespaces; they share only its directory.
	if err := mountAll(mountPoint{fmt.Sprintf("/proc/self/fd/%d", ahead), aheadDir, "", unix.MS_BIND, ""}); err != nil {
		return 0, err
	}
	return superviseAsInit("/proc/self/exe", []string{"lab", "guest-run"}, spec.Env, "/", jobPort)
}

// jobPort is the descriptor of a job's port in a resident guest.
const jobPort = 3
