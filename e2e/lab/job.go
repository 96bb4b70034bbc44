package main

import (
	"errors"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

const (
	runTimeout  = 10 * time.Minute
	testTimeout = 30 * time.Minute
)

type job struct {
	args  []string
	tty   bool
	stdin io.Reader
}

// start runs a job in the kind of lab that fits the options and the machine.
func start(opts options, j job) (int, error) {
	if err := dieWithParent(); err != nil {
		return 0, err
	}
	addSbin()
	mode, why, err := choose(opts.mode, gatherFacts(opts.mode))
	if err != nil {
		return 0, err
	}
	switch mode {
	case "native":
		return runNatively(opts, j, why)
	case modeUML:
		return runInUML(opts, j, why)
	default:
		return runInQEMU(opts, j, why)
	}
}

// dieWithParent sends SIGTERM to the lab when its parent ends. Otherwise the lab would keep running after make is
// killed.
func dieWithParent() error {
	parent := os.Getppid()
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGTERM), 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	if os.Getppid() != parent {
		return errors.New("the parent process has ended")
	}
	return nil
}

// notifyStops returns a channel for the signals that end the lab. The lab cleans up before it exits.
func notifyStops() <-chan os.Signal {
	// If SIGPIPE is caught, writing to a closed stdout returns an error instead of ending the process.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	stops := make(chan os.Signal, 1)
	signal.Notify(stops, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	return stops
}

func runCommand(args []string) (int, error) {
	opts, command, err := parseRunFlags("run", runTimeout, args)
	if err != nil {
		return 0, err
	}
	if len(command) == 0 {
		line := os.Getenv("LAB_RUN")
		if strings.TrimSpace(line) == "" {
			return 0, userErrorf("no command; use make lab RUN='COMMAND', or lab run -- COMMAND")
		}
		command = []string{"/bin/sh", "-c", line}
	}
	j := job{args: command}
	// Only lab shell reads from a terminal. Another command would steal the input of a user who runs the lab in the
	// background.
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		j.stdin = os.Stdin
	}
	return start(opts, j)
}

func shellCommand(args []string) (int, error) {
	opts, command, err := parseRunFlags("shell", 0, args)
	if err != nil {
		return 0, err
	}
	if len(command) == 0 {
		command = []string{"/bin/sh"}
		if _, err := os.Stat("/bin/bash"); err == nil {
			command = []string{"/bin/bash"}
		}
	}
	return start(opts, job{args: command, tty: term.IsTerminal(int(os.Stdin.Fd())), stdin: os.Stdin})
}

func (j job) guestSpec(k kernel, out string) guestSpec {
	spec := guestSpec{
		Args: j.args, Env: passedEnv(os.Environ()), Out: out, Keep: keepVisible(out, k.modules),
		Release: k.release, Modules: k.modules, TTY: j.tty, Dir: "/",
	}
	if dir, err := os.Getwd(); err == nil {
		spec.Dir = dir
	}
	if j.tty {
		spec.Window = terminalSize(os.Stdin)
	}
	return spec
}

// passedEnv returns the variables that are passed to the command. docs/lab.md lists them.
func passedEnv(environ []string) []string {
	names := map[string]bool{
		"PATH": true, "HOME": true, "USER": true, "LOGNAME": true, "SHELL": true, "TERM": true, "COLORTERM": true,
		"LANG": true, "TZ": true, "CI": true,
	}
	var passed []string
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if name == "LAB_RUN" || name == "LAB_CLOCK" {
			continue // applies to this lab, not to a lab inside it
		}
		if names[name] || hasAnyPrefix(name, "LAB_", "KUBE_IPVS_", "RAPID_", "GO", "CGO_", "LC_") {
			passed = append(passed, entry)
		}
	}
	return passed
}

func hasAnyPrefix(s string, prefixes ...string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}

func labEnv(mode, release, out string) []string {
	return []string{"KUBE_IPVS_LAB=1", "LAB_MODE=" + mode, "LAB_KERNEL=" + release, "LAB_OUT=" + out}
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
