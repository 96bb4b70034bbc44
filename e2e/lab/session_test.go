package main

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"syscall"
	"testing"
)

func TestFollow(t *testing.T) {
	host, guest := net.Pipe()
	var stdout, stderr bytes.Buffer
	s := newSession(host)
	s.stdin, s.stdout, s.stderr = strings.NewReader("input"), &stdout, &stderr
	input := make(chan string)
	go func() { // a guest
		w := &frameWriter{w: guest}
		_ = w.write(frameHello, nil)
		var got []byte
		for {
			kind, payload, err := readFrame(guest)
			if err != nil || kind != frameStdin {
				t.Errorf("frame %q %v", kind, err)
			}
			if len(payload) == 0 {
				break
			}
			got = append(got, payload...)
			_ = w.write(frameStdinAck, nil)
		}
		window := make(chan struct{}, outWindow)
		go func() {
			for {
				if kind, _, err := readFrame(guest); err != nil || kind != frameOutAck {
					return
				}
				<-window
			}
		}()
		_, _ = w.stream(frameStdout, window).Write(bytes.Repeat([]byte("x"), maxFrame+1))
		_, _ = w.stream(frameStderr, window).Write([]byte("complaint"))
		_ = w.writeJSON(frameExit, exitReport{Status: 3})
		input <- string(got)
	}()
	report, err := s.follow()
	if err != nil || report.Status != 3 {
		t.Errorf("report %+v %v", report, err)
	}
	if got := <-input; got != "input" {
		t.Errorf("the guest read %q", got)
	}
	if stdout.Len() != maxFrame+1 || stderr.String() != "complaint" {
		t.Errorf("stdout has %d bytes, stderr %q", stdout.Len(), stderr.String())
	}
}

func TestFollowNoticesTheGuestsEnd(t *testing.T) {
	host, guest := net.Pipe()
	guest.Close()
	if _, err := newSession(host).follow(); !errors.Is(err, io.EOF) {
		t.Errorf("error is %v", err)
	}
}

func TestReadFrameRefusesGiants(t *testing.T) {
	if _, _, err := readFrame(strings.NewReader("O\xff\xff\xff\xff")); err == nil {
		t.Error("no error")
	}
}

func TestShellStatus(t *testing.T) {
	for script, want := range map[string]int{"exit 0": 0, "exit 7": 7, "kill -KILL $$": 137, "kill -TERM $$": 143} {
		cmd := exec.Command("sh", "-c", script)
		_ = cmd.Run()
		if got := shellStatus(cmd.ProcessState.Sys().(syscall.WaitStatus)); got != want {
			t.Errorf("%s: %d, want %d", script, got, want)
		}
	}
	if startStatus(exec.ErrNotFound) != 127 || startStatus(os.ErrPermission) != 126 {
		t.Error("the status of a command that cannot start differs from a shell's")
	}
}

func TestPassedEnv(t *testing.T) {
	got := passedEnv([]string{"PATH=/bin", "AWS_KEY=secret", "LAB_X=1", "LAB_RUN=ls", "KUBE_IPVS_A=b", "GOFLAGS=-v", "LC_ALL=C"})
	want := []string{"PATH=/bin", "LAB_X=1", "KUBE_IPVS_A=b", "GOFLAGS=-v", "LC_ALL=C"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q", got)
	}
}
