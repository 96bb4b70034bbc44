package main

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// conversation is the host's side of running a job in a guest.
type conversation struct {
	session   *session
	out       string // the results directory
	timeout   time.Duration
	stops     <-chan os.Signal
	ownClock  bool          // the guest's clock intentionally differs from the host's
	lastWords func() string // the console output of a broken guest
}

type jobResult struct {
	report exitReport
	err    error
}

// run returns the command's status and whether the results directory is worth keeping.
func (v conversation) run(j job) (status int, keep bool, err error) {
	s := v.session
	s.stdout, s.stderr = os.Stdout, os.Stderr
	s.stdin = j.stdin
	if j.tty {
		before, err := term.MakeRaw(int(os.Stdin.Fd()))
		if err != nil {
			return 0, false, err
		}
		defer func() { _ = term.Restore(int(os.Stdin.Fd()), before) }()
		go s.followWindow(os.Stdin)
	}
	results := make(chan jobResult, 1)
	go func() {
		report, err := s.follow()
		results <- jobResult{report, err}
	}()
	select {
	case r := <-results:
		return v.conclude(r)
	case <-after(v.timeout):
		notice("the time limit of %s has passed", v.timeout)
		return v.stop(exitTimeout, results)
	case sig := <-v.stops:
		return v.stop(128+int(sig.(syscall.Signal)), results)
	}
}

func (v conversation) conclude(r jobResult) (status int, keep bool, err error) {
	if isBrokenPipe(r.err) {
		return 128 + int(unix.SIGPIPE), false, nil
	}
	if r.err != nil {
		return 0, true, fmt.Errorf("%w; last console output:\n%s", r.err, v.lastWords())
	}
	keep = reportKernel(r.report, v.out)
	ran := r.report.Took > 0
	if trouble := clockTrouble(r.report.Took, time.Since(v.session.began)); trouble != "" && ran && !v.ownClock {
		notice("%s", trouble)
	}
	if r.report.Error != "" {
		notice("%s", r.report.Error)
	}
	return r.report.Status, keep, nil
}

// stop ends the command. It kills a guest that is still booting.
func (v conversation) stop(status int, results <-chan jobResult) (_ int, keep bool, err error) {
	select {
	case <-v.session.hello:
		v.session.stop()
		select {
		case r := <-results:
			if status == exitTimeout {
				if words := v.lastWords(); words != "" {
					notice("the guest's last words:\n%s", words)
				}
			}
			return status, reportKernel(r.report, v.out), nil
		case <-time.After(stopTime):
			notice("the guest does not answer; last console output:\n%s", v.lastWords())
			return status, true, nil
		}
	default:
		if status == exitTimeout {
			notice("the guest was still booting; last console output:\n%s", v.lastWords())
		}
		return status, false, nil
	}
}
