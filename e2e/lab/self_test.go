package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Each of these tests starts a real lab, which takes seconds. "make lab-test" runs them.

// lab is the result of a run.
type lab struct {
	stdout, stderr string
	status         int
}

func labBinary(t *testing.T) string {
	t.Helper()
	if os.Getenv("LAB_SELFTEST") == "" {
		t.Skip("starts guests; use make lab-test")
	}
	root, err := repoRoot()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, ".cache/lab/bin/lab")
}

// labCommand prepares a run that must leave no process and no file. $LAB_SELFTEST selects the lab, unless the
// arguments do.
func labCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	binary := labBinary(t)
	if !strings.Contains(strings.Join(args, " "), "-lab=") {
		args = slices.Insert(slices.Clone(args), 1, "-lab="+os.Getenv("LAB_SELFTEST"))
	}
	mark := fmt.Sprintf("%s-%d", t.Name(), time.Now().UnixNano())
	out := t.TempDir()
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), "LAB_SELFTEST_MARK="+mark, "TMPDIR="+out)
	t.Cleanup(func() {
		waitForNone(t, mark)
		if left, _ := os.ReadDir(out); len(left) > 0 {
			t.Errorf("%v is left in TMPDIR", left)
		}
	})
	return cmd
}

// waitForNone waits until no process has the mark in its environment.
func waitForNone(t *testing.T, mark string) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for {
		left := processesWith(mark)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("processes are left: %v", left)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func processesWith(mark string) []string {
	var found []string
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range files {
		if environ, err := os.ReadFile(file); err == nil && bytes.Contains(environ, []byte(mark)) {
			found = append(found, filepath.Dir(file))
		}
	}
	return found
}

func runLab(t *testing.T, stdin io.Reader, args ...string) lab {
	t.Helper()
	cmd := labCommand(t, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return lab{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

func runScript(t *testing.T, script string) lab {
	t.Helper()
	return runLab(t, nil, "run", "-timeout=2m", "--", "sh", "-ec", script)
}

// TestCountedLab: the clock advances one nanosecond per instruction, and the cycle counter runs at 1000 MHz.
func TestCountedLab(t *testing.T) {
	needsQEMU(t)
	got := runLab(t, nil, "run", "-accel=counted", "-cpus=", "-lab=", "-timeout=2m", "--", "sh", "-ec", `echo "$LAB_MODE"; nproc; grep MHz /proc/cpuinfo`)
	fields := strings.Fields(got.stdout)
	if got.status != 0 || len(fields) != 7 || strings.Join(fields[:3], " ") != "qemu counted 1" || !strings.HasPrefix(fields[6], "1000.") && !strings.HasPrefix(fields[6], "999.") {
		t.Errorf("status %d, printed %q\n%s", got.status, got.stdout, got.stderr)
	}
}

// guestLab returns a lab that runs a guest, for tests that break their kernel.
func guestLab() string {
	if mode := os.Getenv("LAB_SELFTEST"); mode == modeFast || mode == modeUML {
		return modeUML
	}
	return "qemu"
}

// needsQEMU skips the test if $LAB_SELFTEST names another lab.
func needsQEMU(t *testing.T) {
	t.Helper()
	if mode := os.Getenv("LAB_SELFTEST"); mode != "" && mode != "qemu" && mode != "auto" {
		t.Skipf("LAB=%s is tested", mode)
	}
}

func TestLabPassesStatusAndOutput(t *testing.T) {
	got := runScript(t, "echo to stdout; echo to stderr >&2; exit 7")
	if got.status != 7 {
		t.Errorf("status %d, want 7", got.status)
	}
	if got.stdout != "to stdout\n" {
		t.Errorf("stdout %q", got.stdout)
	}
	lines := strings.SplitAfter(got.stderr, "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "lab: ") || lines[1] != "to stderr\n" {
		t.Errorf("stderr %q, want one line from the lab and one from the command", got.stderr)
	}
}

func TestLabStatusOfSignalsAndMissingCommands(t *testing.T) {
	if got := runScript(t, "kill -KILL $$"); got.status != 137 {
		t.Errorf("status %d after SIGKILL, want 137", got.status)
	}
	if got := runLab(t, nil, "run", "--", "no-such-command"); got.status != 127 || !strings.Contains(got.stderr, "no-such-command") {
		t.Errorf("status %d, stderr %q for a command that does not exist", got.status, got.stderr)
	}
}

func TestLabCarriesInputAndOutputWhole(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789abcdef\r\n\x00"), 300_000)
	got := runLab(t, bytes.NewReader(data), "run", "--", "cat")
	if sha256.Sum256([]byte(got.stdout)) != sha256.Sum256(data) {
		t.Errorf("%d bytes went in, %d came out", len(data), len(got.stdout))
	}
}

func TestLabEnforcesTheTimeLimit(t *testing.T) {
	start := time.Now()
	got := runLab(t, nil, "run", "-timeout=8s", "--", "sleep", "1000")
	if got.status != exitTimeout || !strings.Contains(got.stderr, "time limit") {
		t.Errorf("status %d, stderr %q", got.status, got.stderr)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("took %s", took)
	}
}

// The cleanups of labCommand check that no process is left.
func TestLabEndsOnSignals(t *testing.T) {
	for _, test := range []struct {
		signal syscall.Signal
		status int
	}{{syscall.SIGINT, 130}, {syscall.SIGTERM, 143}, {syscall.SIGKILL, -1}} {
		for _, booted := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s booted %v", test.signal, booted), func(t *testing.T) {
				cmd := labCommand(t, "run", "--", "sh", "-c", "echo started; sleep 1000")
				stdout, err := cmd.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				if booted {
					_, _ = stdout.Read(make([]byte, 8))
				} else {
					time.Sleep(500 * time.Millisecond)
				}
				_ = cmd.Process.Signal(test.signal)
				_ = cmd.Wait()
				if got := cmd.ProcessState.ExitCode(); got != test.status {
					t.Errorf("status %d, want %d", got, test.status)
				}
			})
		}
	}
}

func TestLabEndsWithItsParent(t *testing.T) {
	cmd := labCommand(t, "run", "--", "sh", "-c", "echo started; sleep 1000")
	parent := exec.Command("sh", append([]string{"-c", `"$@" & wait`, "sh", cmd.Path}, cmd.Args[1:]...)...)
	parent.Env = cmd.Env
	stdout, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = stdout.Read(make([]byte, 8))
	_ = parent.Process.Kill()
	_ = parent.Wait()
}

func TestLabReportsADeadGuest(t *testing.T) {
	got := runLab(t, nil, "run", "-lab="+guestLab(), "--", "sh", "-c", "echo c > /proc/sysrq-trigger; sleep 1000")
	if got.status != exitBroken || !strings.Contains(got.stderr, "Kernel panic") {
		t.Errorf("status %d, stderr %s", got.status, got.stderr)
	}
}

func TestLabReportsKernelWarnings(t *testing.T) {
	got := runLab(t, nil, "run", "-lab="+guestLab(), "-out="+t.TempDir(), "--", "sh", "-c", "echo '<4>WARNING: CPU: 0 PID: 1 at test' > /dev/kmsg")
	if !strings.Contains(got.stderr, "KERNEL REPORTED A PROBLEM") {
		t.Errorf("stderr %s", got.stderr)
	}
}

func TestLabKeepsResults(t *testing.T) {
	out := t.TempDir()
	got := runLab(t, nil, "run", "-out="+out, "--", "sh", "-c", `echo kept > "$LAB_OUT/result"`)
	if text, err := os.ReadFile(filepath.Join(out, "result")); err != nil || string(text) != "kept\n" {
		t.Errorf("result %q %v; %s", text, err, got.stderr)
	}
}

// TestVirtualClock: the guest sleeps for longer than the lab's time limit.
func TestVirtualClock(t *testing.T) {
	got := runLab(t, nil, "run", "-lab=uml", "-clock=virtual", "-timeout=1m", "--", "sh", "-c",
		`began=$(date +%s); sleep 36000; echo "$LAB_MODE" $(($(date +%s) - began))`)
	if got.status != 0 || got.stdout != "uml virtual 36000\n" || strings.Contains(got.stderr, "CLOCK WAS WRONG") {
		t.Errorf("status %d, stdout %q, stderr %s", got.status, got.stdout, got.stderr)
	}
	// A busy loop stops the guest's clock. The limit on the host's clock ends it.
	got = runLab(t, nil, "run", "-lab=uml", "-clock=virtual", "-timeout=5s", "--", "sh", "-c", "while :; do :; done")
	if got.status != exitTimeout || !strings.Contains(got.stderr, "time limit") {
		t.Errorf("a loop: status %d, stderr %s", got.status, got.stderr)
	}
}

func TestLabWarmStart(t *testing.T) {
	runScript(t, "true")
	start := time.Now()
	runScript(t, "true")
	took := time.Since(start)
	t.Logf("a run of true takes %s", took.Round(10*time.Millisecond))
	if took > 20*time.Second {
		t.Errorf("a run of true takes %s", took)
	}
}

func TestTwoLabsAtOnce(t *testing.T) {
	for i := range 2 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			got := runScript(t, fmt.Sprintf("ipvsadm -A -t 10.0.0.%d:80; sleep 2; ipvsadm -Ln | grep -c TCP; cat $LAB_OUT/* 2>/dev/null | wc -c", i+1))
			if got.status != 0 || got.stdout != "1\n0\n" {
				t.Errorf("status %d, stdout %q", got.status, got.stdout)
			}
		})
	}
}

func TestKernelTestWantsEveryTestToRun(t *testing.T) {
	const sample = "-pkg=./testdata/sample"
	got := runLab(t, nil, "kernel-test", sample)
	for _, want := range []string{
		"--- FAIL: TestFails/sub", "why it failed", "a skip nobody would see", "FAIL\t",
		"kernel test that never called labtest: github.com/kube-ipvs/kube-ipvs/e2e/lab/testdata/sample.TestReturnsEarly\n",
		"kernel tests: 2 ran, 1 failed, 1 skipped (kernel ",
	} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("no %q in the output", want)
		}
	}
	if got.status != 1 || t.Failed() {
		t.Errorf("status %d, want 1\n%s\n%s", got.status, got.stdout, got.stderr)
	}
	got = runLab(t, nil, "kernel-test", sample, "-run=TestRuns$")
	if got.status != 0 || !strings.Contains(got.stdout, "ok  \t") || !strings.Contains(got.stdout, "1 ran, 0 failed, 0 skipped") {
		t.Errorf("status %d\n%s\n%s", got.status, got.stdout, got.stderr)
	}
	if got = runLab(t, nil, "kernel-test", sample, "-run=NoSuchTest"); got.status != 1 {
		t.Errorf("status %d with no test selected, want 1\n%s", got.status, got.stdout)
	}
}

// TestLabInALab runs the native lab, inside a guest if this kernel has no IPVS.
func TestLabInALab(t *testing.T) {
	got := runScript(t, labBinary(t)+` run -lab=native -- sh -c 'ipvsadm -A -t 10.0.0.1:80; ip -br link; touch /tmp/inner; exit 9' || echo status $?
		ipvsadm -Ln | grep -c TCP || true
		ls /tmp
		`+labBinary(t)+` run -lab=native -timeout=1s -- sleep 1000 || echo status $?
		pgrep sleep || echo none`)
	for _, want := range []string{"lo ", "status 9\n0\n", "status 124\nnone\n"} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("no %q in %s", want, got.stdout)
		}
	}
	if strings.Contains(got.stdout, "inner") {
		t.Errorf("a temporary file remains: %s", got.stdout)
	}
}

// features are scripts that use each kind of kernel object that the agent needs. The kernel must load the modules
// automatically.
var features = map[string]string{
	"ipvsadm":     "ipvsadm -A -t 10.0.0.1:80 -s rr && ipvsadm -Ln | grep '10.0.0.1:80 rr'",
	"destination": "ipvsadm -A -t 10.0.0.2:80 && ipvsadm -a -t 10.0.0.2:80 -r 10.0.1.1:80 -m && ipvsadm -Ln | grep Masq",
	"schedulers": `n=0; for s in rr wrr lc wlc lblc lblcr dh sh mh sed nq fo ovf; do n=$((n+1)); ipvsadm -A -t 10.0.0.3:$n -s $s; done
		! modprobe -n ip_vs_twos || ipvsadm -A -t 10.0.0.3:99 -s twos`,
	"iptables-nft":    filterRules("iptables-nft"),
	"iptables-legacy": filterRules("iptables-legacy"),
	"masquerade":      "for i in iptables ip6tables; do $i-nft -t nat -A POSTROUTING -j MASQUERADE; $i-legacy -t nat -A POSTROUTING -j MASQUERADE; done",
	"interfaces": `ip netns add pod; ip link add veth0 type veth peer name eth0 netns pod; ip link add br0 type bridge
		ip link set veth0 master br0 up; ip addr add 10.1.0.1/24 dev br0; ip link set br0 up
		ip -n pod addr add 10.1.0.2/24 dev eth0; ip -n pod link set eth0 up; ip -n pod link show up dev eth0 | grep eth0
		ip link add kube-ipvs0 type dummy; tc qdisc add dev br0 root netem delay 1ms`,
	"conntrack": "iptables -A INPUT -m conntrack --ctstate NEW -j ACCEPT; test -e /proc/sys/net/netfilter/nf_conntrack_max; modprobe nf_conntrack_netlink",
	"SCTP":      "perl -e 'socket(my $s, 2, 1, 132) or die $!'",
	"system": `test -c /dev/ptmx; test -d /dev/pts; test -w /dev/shm; grep cgroup2 /proc/mounts
		test "$KUBE_IPVS_LAB" = 1; test -w "$LAB_OUT"; test "$PWD" = "$HOST_PWD"`,
}

func TestLabHasWhatServicesNeed(t *testing.T) {
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	script := "HOST_PWD='" + dir + "'\n"
	for name, feature := range features {
		script += fmt.Sprintf("(set -e\n%s\n)\necho \"%s: status $?\"\n", feature, name)
	}
	got := runLab(t, nil, "run", "-lab="+guestLab(), "-kernel="+os.Getenv("LAB_SELFTEST_KERNEL"), "--", "sh", "-c", script)
	for name := range features {
		if !strings.Contains(got.stdout, name+": status 0\n") {
			t.Errorf("%s does not work", name)
		}
	}
	if t.Failed() {
		t.Logf("stdout:\n%s\nstderr:\n%s", got.stdout, got.stderr)
	}
}

func filterRules(iptables string) string {
	return fmt.Sprintf("ipset create -exist ips hash:ip; %s -A INPUT -m set --match-set ips src -m ipvs --ipvs -j ACCEPT; %s-save | grep -e --ipvs",
		iptables, iptables)
}

func TestGuestsCannotWriteToTheHost(t *testing.T) {
	dir, err := os.MkdirTemp(".", "host-") // a guest does not see the host's /tmp
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("host\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	path, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	got := runLab(t, nil, "run", "-lab="+guestLab(), "--", "sh", "-c", `
		echo guest > "$0"; cat "$0"; rm "$0"
		mkdir /tmp/direct && mount -t hostfs none /tmp/direct && { echo guest > "/tmp/direct$0"; rm "/tmp/direct$0"; }
		exit 0`, path)
	if got.status != 0 || !strings.HasPrefix(got.stdout, "guest\n") {
		t.Errorf("the guest could not write to its overlay: status %d, %q, %s", got.status, got.stdout, got.stderr)
	}
	if text, err := os.ReadFile(file); string(text) != "host\n" {
		t.Errorf("the host's file contains %q, %v", text, err)
	}
}
