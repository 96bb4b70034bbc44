// Package rundir creates the directory for the agent's lock and socket. Only root may add files to it. Otherwise another user could create
// the lock or the socket first. It also identifies the process at the other end of a socket.
//
// May import: the standard library.
package rundir

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// Default is the directory. In a container, it must be the host's directory, so that all agents of a node share it.
const Default = "/run/kube-ipvs"

// Make creates a directory that only its owner can open, or checks an existing directory: it must belong to root or to
// this process's user and must not be writable by others.
func Make(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create directory: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("check directory: %w", err)
	}
	mode, owner := info.Mode(), Owner(info)
	switch {
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory (%s); remove it", dir, mode.Type())
	case !Trusted(owner):
		return fmt.Errorf("the directory %s belongs to user %d, not to root; remove it, or use chown root %s", dir, owner, dir)
	case mode.Perm()&0o022 != 0:
		return fmt.Errorf("the directory %s has mode %#o, so other users can write to it; use mode 0700 (chmod 700 %s)", dir, mode.Perm(), dir)
	}
	return nil
}

// OfThisNetwork returns the path of a file for the network namespace of this process. Kernel tables and many sysctls are
// per network namespace.
func OfThisNetwork(prefix, suffix string) (string, error) {
	info, err := os.Stat("/proc/self/ns/net")
	if err != nil {
		return "", fmt.Errorf("find the network namespace: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", errors.New("find the network namespace: it has no inode")
	}
	return filepath.Join(Default, prefix+strconv.FormatUint(stat.Ino, 10)+suffix), nil
}

// Owner returns the user that owns a file.
func Owner(info fs.FileInfo) uint32 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return stat.Uid
	}
	return ^uint32(0) // no user
}

// Trusted reports whether the user is root or the user of this process.
func Trusted(user uint32) bool { return user == 0 || user == uint32(os.Geteuid()) }

// Peer returns the credentials of the process at the other end of a socket, as recorded by the kernel.
func Peer(conn *net.UnixConn) (peer *syscall.Ucred, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	failed := raw.Control(func(fd uintptr) {
		peer, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	return peer, errors.Join(failed, err)
}
