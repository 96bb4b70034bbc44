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

	"github.com/kube-ipvs/kube-ipvs/internal/rundir"
)

type socket struct {
	*net.UnixListener
	path string
	file os.FileInfo
}

// listen creates the socket under a temporary name, restricts it to its owner and renames it. The path never refers to a socket with other
// permissions, and the rename atomically replaces a socket that a killed agent left behind. A socket with a listener is never replaced.
func listen(path string) (*socket, error) {
	if err := rundir.Make(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("create the status socket: %w, or use another path with --status-socket", err)
	}
	if err := free(path); err != nil {
		return nil, err
	}
	own := path + "." + strconv.Itoa(os.Getpid())
	if err := os.Remove(own); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("create the status socket: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: own, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("create the status socket: %w", err)
	}
	listener.SetUnlinkOnClose(false)
	s := &socket{UnixListener: listener, path: path}
	if err := s.publish(own); err != nil {
		return nil, errors.Join(fmt.Errorf("create the status socket: %w", err), listener.Close(), os.Remove(own))
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

// free returns an error if the path is in use. Only a socket is ever replaced.
func free(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("check the status socket: %w", err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is not a socket; remove it, or use another path with --status-socket", path)
	}
	conn, err := net.Dial("unix", path)
	if err == nil {
		_ = conn.Close()
		return fmt.Errorf("another process listens on the status socket %s", path)
	}
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("check the status socket: %w", err)
}

// remove deletes the file unless another agent has replaced it.
func (s *socket) remove() {
	_ = s.Close()
	if info, err := os.Lstat(s.path); err == nil && os.SameFile(info, s.file) {
		_ = os.Remove(s.path)
	}
}
