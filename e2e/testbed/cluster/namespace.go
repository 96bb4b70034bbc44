package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const (
	namesDir = "/run/netns"             // where `ip netns` looks
	locksDir = "/run/kube-ipvs-cluster" // one locked file per running cluster
)

type namespace struct {
	path string   // its name under /run/netns
	file *os.File // open while this process uses the namespace
	nl   *netlink.Handle
}

// onThread runs fn on a locked thread and then restores the thread's network namespace. A thread whose namespace
// cannot be restored is never used again.
func onThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		origin, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		defer origin.Close()
		err = fn()
		if back := unix.Setns(int(origin.Fd()), unix.CLONE_NEWNET); back != nil {
			// The thread is still locked and ends with this goroutine.
			done <- errors.Join(err, fmt.Errorf("leaving the namespace: %w", back))
			return
		}
		runtime.UnlockOSThread()
		done <- err
	}()
	return <-done
}

// newNamespace creates a namespace and brings up its loopback interface. IPVS refuses all destinations in a
// namespace that never had an address.
func newNamespace(name string) (_ *namespace, err error) {
	ns := &namespace{path: filepath.Join(namesDir, name)}
	defer func() {
		if err != nil {
			_ = ns.remove()
			err = fmt.Errorf("network namespace %s: %w", name, err)
		}
	}()
	mark, err := os.OpenFile(ns.path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return nil, err
	}
	mark.Close()
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		f, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			return err
		}
		ns.file = f
		return unix.Mount("/proc/thread-self/ns/net", ns.path, "", unix.MS_BIND, "")
	})
	if err != nil {
		return nil, err
	}
	if ns.nl, err = netlink.NewHandleAt(netns.NsHandle(ns.fd()), unix.NETLINK_ROUTE); err != nil {
		return nil, err
	}
	lo, err := ns.nl.LinkByName("lo")
	if err != nil {
		return nil, err
	}
	return ns, ns.nl.LinkSetUp(lo)
}

func (ns *namespace) fd() int { return int(ns.file.Fd()) }

// Goroutines that fn starts run outside the namespace.
func (ns *namespace) do(fn func() error) error {
	return onThread(func() error {
		if err := unix.Setns(ns.fd(), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("entering %s: %w", filepath.Base(ns.path), err)
		}
		return fn()
	})
}

// inode returns the namespace's identity, as in /proc/<pid>/ns/net.
func (ns *namespace) inode() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(ns.fd(), &st); err != nil {
		return 0, err
	}
	return st.Ino, nil
}

// The kernel destroys the namespace and its interfaces once the last socket in it is closed.
func (ns *namespace) remove() error {
	if ns.nl != nil {
		ns.nl.Close()
		ns.nl = nil
	}
	var errs []error
	if ns.path != "" {
		errs = append(errs, removeName(ns.path))
		ns.path = ""
	}
	if ns.file != nil {
		errs = append(errs, ns.file.Close())
		ns.file = nil
	}
	return errors.Join(errs...)
}

func removeName(path string) error {
	// EINVAL: it was never mounted.
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && err != unix.EINVAL && err != unix.ENOENT {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// prepareNames makes /run/netns a mount that is shared with other mount namespaces, as `ip netns add` does.
// Otherwise, a daemon with a private copy of the mounts would keep removed namespaces alive.
func prepareNames() error {
	if err := os.MkdirAll(namesDir, 0o755); err != nil {
		return err
	}
	err := unix.Mount("", namesDir, "none", unix.MS_SHARED|unix.MS_REC, "")
	if err == unix.EINVAL { // not a mount yet
		if err = unix.Mount(namesDir, namesDir, "none", unix.MS_BIND|unix.MS_REC, ""); err == nil {
			err = unix.Mount("", namesDir, "none", unix.MS_SHARED|unix.MS_REC, "")
		}
	}
	if err != nil {
		return fmt.Errorf("make %s shared: %w", namesDir, err)
	}
	return nil
}

// claimPrefix locks a prefix of namespace names until this process ends. It also removes the namespaces of clusters
// whose process ended without Close.
func claimPrefix(prefix string) (release func(), err error) {
	if err := os.MkdirAll(locksDir, 0o755); err != nil {
		return nil, err
	}
	locks, _ := os.ReadDir(locksDir)
	for _, l := range locks {
		path := filepath.Join(locksDir, l.Name())
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			stale, _ := filepath.Glob(filepath.Join(namesDir, l.Name()+"-*"))
			for _, name := range stale {
				_ = removeName(name)
			}
			_ = os.Remove(path)
		}
		f.Close()
	}
	path := filepath.Join(locksDir, prefix)
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, err
	}
	return func() {
		_ = os.Remove(path)
		f.Close()
	}, nil
}

// killWithin kills every process in the namespaces, including children that left their parent's process group.
func killWithin(inodes map[uint64]bool) error {
	self := os.Getpid()
	deadline := time.Now().Add(10 * time.Second)
	for {
		var left []int
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return err
		}
		for _, e := range entries {
			pid, err := strconv.Atoi(e.Name())
			if err != nil || pid == self {
				continue
			}
			link, err := os.Readlink("/proc/" + e.Name() + "/ns/net")
			if err != nil {
				continue // ended, or a zombie
			}
			ino, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(link, "net:["), "]"), 10, 64)
			if err == nil && inodes[ino] {
				left = append(left, pid)
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v are still running", left)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
