package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// drainTime is the maximum time to read the output of processes that the command left behind.
const drainTime = 2 * time.Second

// runner runs the command in the guest and relays its input and output through the port.
type runner struct {
	spec  guestSpec
	out   *frameWriter
	input *io.PipeReader // standard input from the host
	feed  *io.PipeWriter
	tty   *os.File // the terminal's master side, if any
	// window limits the number of output chunks in transit.
	window chan struct{}
}

// guestRunCommand is the runner, a child of the guest's first process.
func guestRunCommand([]string) (int, error) {
	spec, err := readSpec(runSpec)
	if err != nil {
		return 0, err
	}
	r := &runner{spec: spec, window: make(chan struct{}, outWindow)}
	port, err := r.spec.openPort()
	if err != nil {
		return 0, err
	}
	r.out = &frameWriter{w: port}
	r.input, r.feed = io.Pipe()
	began := time.Now()
	if err := r.out.write(frameHello, nil); err != nil {
		return 0, err
	}
	report := r.execute(port)
	report.Kernel = saveKernelLog(r.spec.Out)
	unix.Sync() // the results directory is a share, and user-mode Linux delays its writes
	report.Took = time.Since(began)
	if err := r.out.writeJSON(frameExit, report); err != nil {
		return 0, err
	}
	// The host stops the guest once it has the report. If the guest powered off first, the report could be cut off.
	select {}
}

func (s guestSpec) openPort() (*os.File, error) {
	if s.UML {
		return openSerialPort("/dev/ttyS0")
	}
	return openVirtioPort(portName)
}

func openSerialPort(device string) (*os.File, error) {
	fd, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", device, err)
	}
	port := os.NewFile(uintptr(fd), device)
	if _, err := term.MakeRaw(fd); err != nil {
		return nil, fmt.Errorf("make %s transparent: %w", device, err)
	}
	return port, nil
}

func openVirtioPort(name string) (*os.File, error) {
	files, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(text)) != name {
			continue
		}
		device := "/dev/" + filepath.Base(filepath.Dir(file))
		fd, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open %s: %w", device, err)
		}
		return os.NewFile(uintptr(fd), device), nil
	}
	return nil, fmt.Errorf("no virtio-serial port %s among %v", name, files)
}

func (r *runner) execute(port io.Reader) exitReport {
	if len(r.spec.Args) == 0 {
		return exitReport{}
	}
	cmd := exec.Command(r.spec.Args[0], r.spec.Args[1:]...)
	cmd.Dir = r.spec.Dir
	cmd.WaitDelay = drainTime
	attach := r.attachPipes
	if r.spec.TTY {
		attach = r.attachTerminal
	}
	drained, err := attach(cmd)
	if err != nil {
		return exitReport{Status: exitBroken, Error: err.Error()}
	}
	if err := cmd.Start(); err != nil {
		return exitReport{Status: startStatus(err), Error: err.Error()}
	}
	go r.obeyHost(port)
	err = cmd.Wait()
	drained()
	report := exitReport{Status: shellStatus(cmd.ProcessState.Sys().(syscall.WaitStatus))}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		report.Error = err.Error()
	}
	return report
}

func startStatus(err error) int {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		return 127
	}
	return 126
}

func (r *runner) attachPipes(cmd *exec.Cmd) (drained func(), err error) {
	// With cmd.Stdin, Wait would block until the input ends, even if the command never reads it.
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	go func() {
		_, _ = io.Copy(stdin, r.input) // a command that closes its stdin early is not an error
		_ = stdin.Close()
		// Discard the rest, so that obeyHost never blocks.
		_, _ = io.Copy(io.Discard, r.input)
	}()
	cmd.Stdout = r.out.stream(frameStdout, r.window)
	cmd.Stderr = r.out.stream(frameStderr, r.window)
	return func() {}, nil
}

func (r *runner) attachTerminal(cmd *exec.Cmd) (drained func(), err error) {
	master, slave, err := openTerminal()
	if err != nil {
		return nil, err
	}
	r.tty = master
	r.resize(r.spec.Window)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	done := make(chan struct{})
	go func() {
		_, _ = io.Copy(r.out.stream(frameStdout, r.window), master) // fails with EIO when the last process closes the terminal
		close(done)
	}()
	go func() { _, _ = io.Copy(master, r.input) }()
	return func() {
		_ = slave.Close()
		select {
		case <-done:
		case <-time.After(drainTime):
		}
	}, nil
}

func (r *runner) resize(size windowSize) {
	if r.tty == nil || size.Rows == 0 {
		return
	}
	// Ignore errors: a terminal with the wrong size still works.
	_ = unix.IoctlSetWinsize(int(r.tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols})
}

func (r *runner) obeyHost(port io.Reader) {
	// The host sends the next chunk of input only after this one is consumed. Its other frames therefore never
	// wait behind unread input.
	pieces := make(chan []byte, 1)
	go r.feedInput(pieces)
	for {
		kind, payload, err := readFrame(port)
		if err != nil {
			return
		}
		switch kind {
		case frameStdin:
			pieces <- payload
		case frameWindow:
			var size windowSize
			if json.Unmarshal(payload, &size) == nil {
				r.resize(size)
			}
		case frameOutAck:
			<-r.window
		case frameStop:
			killEverything()
		}
	}
}

// feedInput passes input to the command and requests the next chunk after each one.
func (r *runner) feedInput(pieces <-chan []byte) {
	for piece := range pieces {
		if len(piece) == 0 {
			_ = r.feed.Close()
			return
		}
		if _, err := r.feed.Write(piece); err != nil {
			return
		}
		if r.out.write(frameStdinAck, nil) != nil {
			return
		}
	}
}

func killEverything() {
	_ = unix.Kill(-1, unix.SIGTERM)
	time.Sleep(200 * time.Millisecond)
	_ = unix.Kill(-1, unix.SIGKILL)
}
