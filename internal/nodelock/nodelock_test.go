package nodelock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// testPlace returns a separate place for each test, so tests can run in parallel and on a node that runs an agent.
func testPlace(t *testing.T) place {
	dir := filepath.Join(t.TempDir(), "kube-ipvs")
	return place{dir, "node-1.lock", fmt.Sprintf("%s/test-%d-%s", agentSocket, os.Getpid(), t.Name()), time.Minute}
}

func (p place) mustAcquire(t *testing.T) *Lock {
	t.Helper()
	lock, err := p.tryAcquire()
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

func TestTryAcquireNamesTheHolder(t *testing.T) {
	p := testPlace(t)
	lock := p.mustAcquire(t)
	_, err := p.tryAcquire()
	want := fmt.Sprintf("(%s, process %d)", filepath.Base(os.Args[0]), os.Getpid())
	if !errors.Is(err, ErrHeld) || !strings.Contains(err.Error(), want) {
		t.Errorf("second: %v; want %q", err, want)
	}
	if err := lock.Release(); err != nil {
		t.Fatal(err)
	}
	if err := p.mustAcquire(t).Release(); err != nil {
		t.Fatal(err)
	}
}

// TestLastDataPlane: an agent's data plane stays known after it has ended, until the next agent runs. Nothing is known from a malformed file.
func TestLastDataPlane(t *testing.T) {
	p := testPlace(t)
	lock := p.mustAcquire(t)
	lock.Record("userspace")
	if _, err := p.tryAcquire(); !strings.Contains(err.Error(), fmt.Sprintf("process %d)", os.Getpid())) {
		t.Errorf("the holder is missing in %q", err)
	}
	if err := lock.Release(); err != nil {
		t.Fatal(err)
	}
	if h, err := p.read(); h.DataPlane != "userspace" || h.PID != os.Getpid() || err != nil {
		t.Errorf("after the end: %+v, %v", h, err)
	}
	next := p.mustAcquire(t)
	defer func() { _ = next.Release() }()
	if h, err := p.read(); h.DataPlane != "userspace" || err != nil {
		t.Errorf("the next holder: %+v, %v", h, err)
	}
	next.Record("ipvs")
	if h, err := p.read(); h.DataPlane != "ipvs" || err != nil {
		t.Errorf("the next agent: %+v, %v", h, err)
	}
	for _, text := range []string{`{"dataPlane":"userspace","pid":"x"}`, `{"dataPlane":"userspace"`, ""} {
		if err := os.WriteFile(next.file.Name(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if h, err := p.read(); h != (holder{}) || err == nil {
			t.Errorf("%q: %+v, %v", text, h, err)
		}
	}
}

// TestHolderInAnotherContainer: the error says that the PID belongs to another PID namespace, because here it would
// identify a different process.
func TestHolderInAnotherContainer(t *testing.T) {
	p := testPlace(t)
	lock := p.mustAcquire(t)
	defer func() { _ = lock.Release() }()
	for text, want := range map[string]string{
		`{"pid":1,"pidNamespace":"pid:[1]","command":"kube-ipvs run"}`: "(kube-ipvs run, process 1 in another container; to find it, run fuser " + lock.file.Name(),
		`{"pid":`: ErrHeld.Error(),
		"":        ErrHeld.Error(),
	} {
		if err := os.WriteFile(lock.file.Name(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := p.tryAcquire(); !errors.Is(err, ErrHeld) || !strings.Contains(err.Error(), want) {
			t.Errorf("holder %q: got error %v, want %q", text, err, want)
		}
	}
}

func TestCommand(t *testing.T) {
	for want, args := range map[string][]string{
		"kube-ipvs run":     {"/usr/bin/kube-ipvs", "run", "--kubeconfig", "/root/admin.conf"},
		"kube-ipvs cleanup": {"kube-ipvs", "cleanup"},
		"kube-ipvs":         {"./kube-ipvs", "--version"},
		"agent":             {"agent"},
	} {
		if got := command(args); got != want {
			t.Errorf("%q: %q, want %q", args, got, want)
		}
	}
}

func TestAcquireWaitsForRelease(t *testing.T) {
	p := testPlace(t)
	lock := p.mustAcquire(t)
	waiting, acquired := make(chan error, 2), make(chan *Lock, 1)
	go func() {
		second, err := p.acquire(t.Context(), func(err error) { waiting <- err })
		if err != nil {
			t.Error(err)
		}
		acquired <- second
	}()
	if err := <-waiting; !errors.Is(err, ErrHeld) {
		t.Errorf("waiting was called with %v, want ErrHeld", err)
	}
	select {
	case <-acquired:
		t.Fatal("two processes hold the lock")
	case <-time.After(2 * pollInterval): // the test may miss a failure, but never reports a false one
	}
	if err := lock.Release(); err != nil {
		t.Fatal(err)
	}
	if err := (<-acquired).Release(); err != nil {
		t.Fatal(err)
	}
	if len(waiting) > 0 {
		t.Error("waiting was called twice with the same error text")
	}
}

func TestAcquireEndsWithItsContext(t *testing.T) {
	p := testPlace(t)
	lock := p.mustAcquire(t)
	defer func() { _ = lock.Release() }()
	ctx, cancel := context.WithCancel(t.Context())
	_, err := p.acquire(ctx, func(error) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("acquire: %v", err)
	}
}

// listenAs runs in a process that a test starts as another user. It binds the socket named in its environment, and
// keeps it bound until its standard input ends.
func listenAs(name string) {
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("listening")
	_, _ = os.Stdin.Read(make([]byte, 1))
	_ = listener.Close()
}

const socketVariable = "NODELOCK_TEST_SOCKET"

func TestMain(m *testing.M) {
	if name := os.Getenv(socketVariable); name != "" {
		listenAs(name)
		return
	}
	os.Exit(m.Run())
}

// bindElsewhere binds the socket in another process, which runs as the given user, until the test ends.
func bindElsewhere(t *testing.T, name string, user uint32) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{socketVariable + "=" + name}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	hold, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = hold.Close(), cmd.Wait() })
	said := make([]byte, 100)
	if n, _ := out.Read(said); string(said[:n]) != "listening\n" {
		t.Fatalf("the other process printed %q", said[:n])
	}
}

// TestSocketOfAnotherUser: a local user who binds the socket can neither stop nor delay an agent.
func TestSocketOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can start a process as another user")
	}
	p := testPlace(t)
	const user = 65534
	bindElsewhere(t, p.socket, user)
	lock, err := p.acquire(t.Context(), func(err error) { t.Errorf("the agent waits: %v", err) })
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Release() }()
	if lock.Ignored == nil || !strings.Contains(lock.Ignored.Error(), fmt.Sprintf("user %d", user)) {
		t.Errorf("Ignored is %v, want an error that names the user", lock.Ignored)
	}
	if _, err := p.tryAcquire(); !errors.Is(err, ErrHeld) {
		t.Errorf("a second agent: got error %v, want ErrHeld", err)
	}
}

// TestSocketWithoutListener: a bound socket without a listener is ignored, because an agent always listens.
func TestSocketWithoutListener(t *testing.T) {
	p := testPlace(t)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: p.socket}); err != nil {
		t.Fatal(err)
	}
	if lock := p.mustAcquire(t); lock.Ignored == nil || lock.Release() != nil {
		t.Errorf("ignored: %v", lock.Ignored)
	}
}

// TestSocketOfRoot: the holder may be an agent that does not share the file's directory, so another agent waits for
// the socket, but not forever.
func TestSocketOfRoot(t *testing.T) {
	first := testPlace(t)
	first.mustAcquire(t)
	second := first
	second.dir = filepath.Join(t.TempDir(), "another")
	if _, err := second.tryAcquire(); !errors.Is(err, ErrHeld) || !strings.Contains(err.Error(), fmt.Sprintf("process %d", os.Getpid())) {
		t.Errorf("an agent with another directory: got error %v, want ErrHeld", err)
	}
	second.patience = 2 * pollInterval
	waited := 0
	lock, err := second.acquire(t.Context(), func(error) { waited++ })
	if err != nil || waited != 1 || lock.Ignored == nil {
		t.Fatalf("acquire returned error %v and lock %v after %d calls of waiting", err, lock, waited)
	}
	_ = lock.Release()
}

// TestUnsafeFiles: a lock file that another user can lock is rejected.
func TestUnsafeFiles(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(path string) error
		refused string
	}{
		"symbolic link":            {func(path string) error { return os.Symlink("/etc/passwd", path) }, "symbolic link"},
		"others can read":          {func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Chmod(path, 0o644)) }, "mode 0644"},
		"pipe":                     {func(path string) error { return unix.Mkfifo(path, 0o600) }, "not a regular file"},
		"world-writable directory": {func(path string) error { return os.Chmod(filepath.Dir(path), 0o777) }, "chmod 700"},
		"another user's": {func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o600), os.Chown(path, 65534, 65534))
		}, "belongs to user 65534"},
	} {
		t.Run(name, func(t *testing.T) {
			p := testPlace(t)
			if err := os.Mkdir(p.dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := c.prepare(filepath.Join(p.dir, p.file)); errors.Is(err, os.ErrPermission) {
				t.Skip("only root can change a file's owner")
			} else if err != nil {
				t.Fatal(err)
			}
			if lock, err := p.tryAcquire(); err == nil || !strings.Contains(err.Error(), c.refused) {
				t.Errorf("got lock %v and error %v, want an error with %q", lock, err, c.refused)
			}
		})
	}
}
