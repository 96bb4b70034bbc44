package image

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// TestContain checks e2e/testbed/contain.
func TestContain(t *testing.T) {
	labtest.NeedRoot(t)
	contain, writable := programOf(t, "KUBE_IPVS_CONTAIN"), t.TempDir()
	for _, c := range []struct {
		inside []string
		want   syscall.Errno
	}{
		{attempt(t, "create", "/etc/contain"), unix.EROFS},
		{attempt(t, "create", filepath.Join(writable, "contain")), 0},
		{attempt(t, "user namespace", ""), unix.EPERM}, // needs no capability, but the filter rejects it
		{attempt(t, "chroot", "/"), unix.EPERM},
		{[]string{"ip", "address", "add", "192.0.2.1/32", "dev", "lo"}, 0},
		{[]string{"sh", "-c", "test $(grep -cE '^Cap(Prm|Eff|Bnd):[[:space:]]*0000000000003000$' /proc/self/status) = 3"}, 0}, // no other capability
		{[]string{"grep", "-q", "^NoNewPrivs:[[:space:]]*1$", "/proc/self/status"}, 0},
	} {
		args := append([]string{"-capabilities", "NET_ADMIN,NET_RAW", "-mount", writable + ":" + writable, "--"}, c.inside...)
		command := exec.Command(contain, args...)
		command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		command.Env = append(os.Environ(), insideVariable+"=yes")
		out, err := command.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if got := command.ProcessState.ExitCode(); got != int(c.want) {
			t.Errorf("%v: exit status %d, want %d (%v)\n%s", c.inside, got, int(c.want), c.want, out)
		}
	}
}

// insideVariable makes this test program attempt the operation in its arguments. The exit status is the kernel's
// errno.
const insideVariable = "KUBE_IPVS_INSIDE"

func attempt(t *testing.T, what, with string) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{self, what, with}
}

var attempts = map[string]func(string) error{
	"create": func(path string) error {
		fd, err := unix.Open(path, unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return err
		}
		return unix.Close(fd)
	},
	"user namespace": func(string) error { return unix.Unshare(unix.CLONE_NEWUSER) },
	"chroot":         unix.Chroot,
}

func TestMain(m *testing.M) {
	if os.Getenv(insideVariable) == "" {
		os.Exit(m.Run())
	}
	var errno syscall.Errno
	if err := attempts[os.Args[1]](os.Args[2]); errors.As(err, &errno) {
		os.Exit(int(errno))
	} else if err != nil {
		panic(err)
	}
}
