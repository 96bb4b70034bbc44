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

// guestServeCommand is the guest's side of a resident guest: a child of its first process. It starts a process for each job, in
// namespaces of its own, and passes frames between that and the port.
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
				os.Exit(exitBroken) // with the first process, the guest ends
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
	ahead []string // a program that is started before each job, in dir
	dir   string
	early *exec.Cmd // the one for the next job
}

// aheadDir is where the program that is started ahead of a job leaves files for it. The job finds it under the same name.
const aheadDir = "/run/lab/ahead"

// aheadLog is that program's output, in aheadDir.
const aheadLog = "log"

// startAhead ends what was started for the last job, and starts the next.
func (g *guestServer) startAhead() error {
	if g.early != nil {
		_ = unix.Kill(-g.early.Process.Pid, unix.SIGKILL) // fails when it has ended
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

// run runs a job to its exit report.
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
		_ = cmd.Process.Kill() // and with it all processes of its namespace
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
			_ = to.write(f.kind, f.payload) // a job that has ended shows in passOutput
		}
	}
}

// passOutput passes a job's frames on to the port, up to its exit report.
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

// guestJobCommand is the first process of a job's namespaces in a resident guest. It builds a root anew, so that the job sees the
// host's files as they are now.
func guestJobCommand(args []string) (int, error) {
	spec, err := readSpec(args[0])
	if err != nil {
		return 0, err
	}
	_ = os.Remove(args[0]) // left there, it would only be in the way
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
	// The process started ahead of this job is in other namespaces; its folder is what both have.
	if err := mountAll(mountPoint{fmt.Sprintf("/proc/self/fd/%d", ahead), aheadDir, "", unix.MS_BIND, ""}); err != nil {
		return 0, err
	}
	return superviseAsInit("/proc/self/exe", []string{"lab", "guest-run"}, spec.Env, "/", jobPort)
}

// jobPort is the descriptor that is a job's port in a resident guest.
const jobPort = 3
