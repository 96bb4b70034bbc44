package netdev

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Sysctls reads the same sysctls repeatedly and keeps their files open, so that a read takes one system call per sysctl.
type Sysctls struct {
	tree  sysctlTree
	files map[string]*os.File
	buf   []byte
}

// FollowSysctls opens the sysctls of the calling thread's network namespace. The same thread must make all reads.
func (b *Backend) FollowSysctls() *Sysctls {
	const longest = 256
	return &Sysctls{tree: b.sysctls, files: map[string]*os.File{}, buf: make([]byte, longest)}
}

// Read returns the same result as Backend.ReadSysctls.
func (s *Sysctls) Read(ctx context.Context, names []string) (map[string]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("read sysctls: %w", err)
	}
	values := make(map[string]string, len(names))
	for _, name := range names {
		value, err := s.read(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read sysctl %s: %w", name, err)
		}
		values[name] = value
	}
	return values, nil
}

// read opens the file if it is not open, or if the sysctl was recreated with its device.
func (s *Sysctls) read(name string) (string, error) {
	if file := s.files[name]; file != nil {
		if value, err := s.readFile(file); err == nil {
			return value, nil
		}
		_ = file.Close()
		delete(s.files, name)
	}
	file, err := os.Open(s.tree.path(name))
	if err != nil {
		return "", err
	}
	s.files[name] = file
	return s.readFile(file)
}

func (s *Sysctls) readFile(file *os.File) (string, error) {
	n, err := unix.Pread(int(file.Fd()), s.buf, 0)
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(s.buf[:n])), nil
}

// Close closes the files.
func (s *Sysctls) Close() error {
	var errs []error
	for _, file := range s.files {
		errs = append(errs, file.Close())
	}
	return errors.Join(errs...)
}
