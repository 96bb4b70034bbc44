package status

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

// socket is a listener on a file that only its owner can open.
type socket struct {
	*net.UnixListener
	path string
	file os.FileInfo
}

// listen makes the socket under a name of this process and renames it when nobody else can open it: at its own name it is never
// there with other rights, and one that a killed agent left behind is replaced in one step. One that somebody listens on stays.
func listen(path string) (*socket, error) {
	if err := makeFolder(filepath.Dir(path)); err != nil {
		return nil, err
	}
	if err := free(path); err != nil {
		return nil, err
	}
	own := path + "." + strconv.Itoa(os.Getpid())
	if err := os.Remove(own); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("make the status socket: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: own, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("make the status socket: %w", err)
	}
	listener.SetUnlinkOnClose(false)
	s := &socket{UnixListener: listener, path: path}
	if err := s.publish(own); err != nil {
		return nil, errors.Join(fmt.Errorf("make the status socket: %w", err), listener.Close(), os.Remove(own))
	}
	return s, nil
}

func (s *socket) publish(own string) (err error) {
	if err := os.Chmod(own, 0o600); err != nil {
		return err
	}
	if s.file, err = os.Lstat(own); err != nil {
		return err
	}
	return os.Rename(own, s.path)
}

// makeFolder makes the folder where it is missing. In one that others may write to they could put a socket of theirs.
func makeFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the folder of the status socket: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("look at the folder of the status socket: %w", err)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("the folder %s of the status socket has mode %#o, so that others may write to it: want 0700 "+
			"(chmod 700 %s, or name another with --status-socket)", dir, info.Mode().Perm(), dir)
	}
	return nil
}

// free says whether the socket can be taken. Only a file that is a socket is ever replaced.
func free(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at the status socket: %w", err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is no socket: it stays as it is; remove it, or name another with --status-socket", path)
	}
	conn, err := net.Dial("unix", path)
	if err == nil {
		_ = conn.Close()
		return fmt.Errorf("another process listens on the status socket %s", path)
	}
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("look at the status socket: %w", err)
}

// remove removes the file if it is still ours: another agent may have replaced it.
func (s *socket) remove() {
	_ = s.Close()
	if info, err := os.Lstat(s.path); err == nil && os.SameFile(info, s.file) {
		_ = os.Remove(s.path)
	}
}
