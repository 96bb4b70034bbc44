package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// keepResident starts "lab up" and returns a function that starts labs that use it.
func keepResident(t *testing.T, ahead ...string) (up *exec.Cmd, run func(script string) lab) {
	t.Helper()
	if guestLab() != modeUML {
		t.Skip("a resident guest is user-mode Linux")
	}
	up = labCommand(t, append([]string{"up", "-lab=", "--"}, ahead...)...)
	stderr, err := up.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := up.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = up.Process.Signal(syscall.SIGTERM)
		_ = up.Wait()
	})
	lines := bufio.NewScanner(stderr)
	for lines.Scan() && !strings.Contains(lines.Text(), "is up") {
		t.Log(lines.Text())
	}
	go func() {
		for lines.Scan() {
		}
	}()
	return up, func(script string) lab {
		t.Helper()
		cmd := exec.Command(labBinary(t), "run", "-lab=uml", "-timeout=1m", "--", "sh", "-ec", script)
		cmd.Env = up.Env
		var stdout, stderr strings.Builder
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		_ = cmd.Run() // the status is sufficient
		return lab{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
	}
}

func (got lab) mustBe(t *testing.T, status int, stdout string) {
	t.Helper()
	if got.status != status || got.stdout != stdout || !strings.Contains(got.stderr, "resident") {
		t.Errorf("status %d, stdout %q, want %d, %q\n%s", got.status, got.stdout, status, stdout, got.stderr)
	}
}

// TestResidentGuest checks that jobs see the host's current files and no traces of earlier jobs.
func TestResidentGuest(t *testing.T) {
	_, run := keepResident(t, "sh", "-c", `echo early > "$0/greeting"; sleep 1000`)
	file := filepath.Join(t.TempDir(), "file")
	if strings.HasPrefix(file, "/tmp/") {
		t.Setenv("TMPDIR", "") // guests have their own /tmp
		root, err := repoRoot()
		if err != nil {
			t.Fatal(err)
		}
		dir, err := os.MkdirTemp(filepath.Join(root, ".cache"), "resident-test-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		file = filepath.Join(dir, "file")
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("one\n")
	run("cat "+file+"; echo two > "+file+"; cat "+file).mustBe(t, 0, "one\ntwo\n")
	write("three\n")
	run("cat "+file).mustBe(t, 0, "three\n")
	run("sleep 1000 & ipvsadm -A -t 10.0.0.1:80; ip link add left type dummy; ipset create left hash:ip; touch /etc/left").mustBe(t, 0, "")
	run("ip -o link | wc -l; ipset list -n; ls /etc/left 2>/dev/null || ipvsadm -Sn; ls /proc | grep -c '^[0-9]*$' | sed 's/^[0-9]$/few/'").mustBe(t, 0, "1\nfew\n")
	run("cat "+aheadDir+"/greeting; echo mine > "+aheadDir+"/greeting").mustBe(t, 0, "early\n")
	run("until grep early "+aheadDir+"/greeting; do sleep 0.01; done").mustBe(t, 0, "early\n")
	run("kill -9 $$").mustBe(t, 128+9, "")
	run("exit 3").mustBe(t, 3, "")
	run("echo result > $LAB_OUT/result; ls -A $LAB_OUT; echo $LAB_MODE").mustBe(t, 0, "result\numl\n")
	run(": "+strings.Repeat("x", 20000)+"; echo long").mustBe(t, 0, "long\n")
}

// TestResidentGuestLosesItsUser kills a job's lab. The job ends, and the next job runs.
func TestResidentGuestLosesItsUser(t *testing.T) {
	up, run := keepResident(t)
	user := exec.Command(labBinary(t), "run", "-lab=uml", "--", "sh", "-c", "echo started; sleep 1000")
	user.Env = up.Env
	stdout, err := user.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := user.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "started\n" {
		t.Fatalf("printed %q, %v", line, err)
	}
	_ = user.Process.Kill()
	_ = user.Wait()
	began := time.Now()
	run("echo next").mustBe(t, 0, "next\n")
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the next job waited %s", took)
	}
}

func TestResidentGuestIsToldToEnd(t *testing.T) {
	up, run := keepResident(t)
	second := exec.Command(labBinary(t), "up")
	second.Env = up.Env
	if out, err := second.CombinedOutput(); second.ProcessState.ExitCode() != exitUsage || !strings.Contains(string(out), "is up already") {
		t.Errorf("a second lab up: %v %s", err, out)
	}
	down := exec.Command(labBinary(t), "down")
	down.Env = up.Env
	if out, err := down.CombinedOutput(); err != nil {
		t.Errorf("lab down: %v %s", err, out)
	}
	ended := make(chan error, 1)
	go func() { ended <- up.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("lab up ended with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("lab up still runs after lab down")
	}
	if got := run("echo alone"); got.status != 0 || got.stdout != "alone\n" || strings.Contains(got.stderr, "resident") {
		t.Errorf("without a resident guest: %+v", got)
	}
}
