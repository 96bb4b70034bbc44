package labtest

import (
	"fmt"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/e2e/lab/loopback"
)

const ownNetNS = "/proc/thread-self/ns/net"

// Namespace is a network namespace that exists until its test ends.
type Namespace struct{ fd int }

// NetNS calls Need, and moves the test into a new network namespace until the test ends. The loopback interface is up.
//
// The calling goroutine and the processes that it starts are in the namespace. Goroutines and subtests that it starts are not;
// subtests call Enter. Files such as /proc/net/... must be read as /proc/thread-self/net/...
func NetNS(t testing.TB) *Namespace {
	t.Helper()
	Need(t)
	return newNamespace(t)
}

// NetNSNoIPVS is NetNS for tests that need root but not IPVS.
func NetNSNoIPVS(t testing.TB) *Namespace {
	t.Helper()
	NeedRoot(t)
	return newNamespace(t)
}

// Enter moves another goroutine, such as that of a subtest, into the namespace until its test ends.
func (n *Namespace) Enter(t testing.TB) {
	t.Helper()
	leaveAtEnd(t)
	if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
		t.Fatalf("enter the network namespace: %v", err)
	}
}

// FD returns an open descriptor of the namespace, for netlink sockets and setns(2). It is closed when the test ends.
func (n *Namespace) FD() int { return n.fd }

// Path names the namespace for programs started by this process, such as "nsenter --net=PATH".
func (n *Namespace) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", unix.Getpid(), n.fd) }

func newNamespace(t testing.TB) *Namespace {
	t.Helper()
	leaveAtEnd(t)
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("make a network namespace: %v", err)
	}
	if err := loopback.Up(); err != nil {
		t.Fatal(err)
	}
	fd := openNetNS(t)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return &Namespace{fd}
}

// leaveAtEnd locks the goroutine to its thread, whose namespace is about to change, and undoes both when the test ends. Cleanups run on
// the test's goroutine, and therefore on that thread. If the thread cannot return to its namespace, it stays locked. The Go runtime then
// destroys it with the goroutine instead of reusing it.
func leaveAtEnd(t testing.TB) {
	t.Helper()
	runtime.LockOSThread()
	home := openNetNS(t)
	t.Cleanup(func() {
		defer unix.Close(home)
		if err := unix.Setns(home, unix.CLONE_NEWNET); err != nil {
			t.Errorf("leave the network namespace: %v", err)
			return
		}
		runtime.UnlockOSThread()
	})
}

func openNetNS(t testing.TB) int {
	t.Helper()
	fd, err := unix.Open(ownNetNS, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("open the network namespace: %v", err)
	}
	return fd
}
