package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// session is the host's end of a guest's port.
type session struct {
	port           io.ReadWriter
	out            *frameWriter
	stdin          io.Reader // nil for none
	stdout, stderr io.Writer
	hello          chan struct{} // closed when the command is about to start
	began          time.Time     // when hello arrived
	acks           chan struct{}
}

func newSession(port io.ReadWriter) *session {
	return &session{
		port: port, out: &frameWriter{w: port}, stdout: io.Discard, stderr: io.Discard,
		hello: make(chan struct{}), acks: make(chan struct{}, 1),
	}
}

// follow handles frames until the exit report arrives or the guest ends.
func (s *session) follow() (exitReport, error) {
	for {
		kind, payload, err := readFrame(s.port)
		if err != nil {
			return exitReport{}, fmt.Errorf("the guest ended before the command did: %w", err)
		}
		switch kind {
		case frameHello:
			s.began = time.Now()
			close(s.hello)
			if s.stdin != nil {
				go s.sendInput()
			} else {
				_ = s.out.write(frameStdin, nil) // if the guest has ended, readFrame reports it
			}
		case frameStdout:
			if err := s.pass(s.stdout, payload); err != nil {
				return exitReport{}, err
			}
		case frameStderr:
			if err := s.pass(s.stderr, payload); err != nil {
				return exitReport{}, err
			}
		case frameStdinAck:
			s.acks <- struct{}{}
		case frameExit:
			var report exitReport
			return report, json.Unmarshal(payload, &report)
		default:
			return exitReport{}, fmt.Errorf("the guest sent a frame of unknown kind %q", kind)
		}
	}
}

// pass writes output and acknowledges it.
func (s *session) pass(w io.Writer, payload []byte) error {
	if _, err := w.Write(payload); err != nil {
		return err
	}
	_ = s.out.write(frameOutAck, nil) // if the guest has ended, readFrame reports it
	return nil
}

// sendInput sends a chunk of input whenever the guest requests it.
func (s *session) sendInput() {
	buffer := make([]byte, inPiece)
	for {
		n, err := s.stdin.Read(buffer)
		if n > 0 {
			if s.out.write(frameStdin, buffer[:n]) != nil {
				return
			}
			<-s.acks
		}
		if err != nil {
			_ = s.out.write(frameStdin, nil)
			return
		}
	}
}

func (s *session) stop() { _ = s.out.write(frameStop, nil) }

func (s *session) followWindow(tty *os.File) {
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, unix.SIGWINCH)
	for range changes {
		if s.out.writeJSON(frameWindow, terminalSize(tty)) != nil {
			return
		}
	}
}

// isBrokenPipe reports whether the reader of the lab's output has exited, as head does.
func isBrokenPipe(err error) bool { return errors.Is(err, syscall.EPIPE) }
