package netdev

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// sysctlTree is the folder that holds sysctls as files.
type sysctlTree string

// hostSysctls shows the values of the calling thread's network namespace.
const hostSysctls sysctlTree = "/proc/sys"

// ReadSysctls returns the values of the named sysctls (net/ipv4/ip_forward). One that this kernel does not have is absent.
func (b *Backend) ReadSysctls(ctx context.Context, names []string) (map[string]string, error) {
	values := make(map[string]string, len(names))
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("read sysctls: %w", err)
		}
		value, err := b.sysctls.read(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		values[name] = value
	}
	return values, nil
}

func (t sysctlTree) path(name string) string { return filepath.Join(string(t), name) }

func (t sysctlTree) read(name string) (string, error) {
	b, err := os.ReadFile(t.path(name))
	if err != nil {
		return "", fmt.Errorf("read sysctl %s: %w", name, err)
	}
	return strings.TrimSpace(string(b)), nil
}

// write sets a sysctl and checks that the kernel took the value: some clamp it, some ignore it.
func (t sysctlTree) write(s kernel.SysctlSetting) error {
	if err := t.writeFile(s); err != nil {
		return explainSysctl(s, err)
	}
	value, err := t.read(s.Name)
	if err != nil {
		return err
	}
	// Values of several words are read back with other white space.
	if !slices.Equal(strings.Fields(value), strings.Fields(s.Value)) {
		return fmt.Errorf("set sysctl %s: it is %q after %q was written", s.Name, value, s.Value)
	}
	return nil
}

func (t sysctlTree) writeFile(s kernel.SysctlSetting) error {
	f, err := os.OpenFile(t.path(s.Name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(s.Value)
	return errors.Join(err, f.Close())
}

func explainSysctl(s kernel.SysctlSetting, err error) error {
	switch {
	case errors.Is(err, unix.EROFS), errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("set sysctl %s: this container may not write it; mount the host's /proc/sys/net writable, "+
			"or run on the host: sysctl -w %s=%s: %w", s.Name, dotted(s.Name), s.Value, err)
	case errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(s.Name, "net/ipv4/vs/"):
		return fmt.Errorf("set sysctl %s: the kernel has no IPVS, or one without this sysctl (run `modprobe ip_vs` on the host): %w: %w",
			s.Name, kernel.ErrUnavailable, err)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("set sysctl %s: %w: %w", s.Name, kernel.ErrUnavailable, err)
	}
	return fmt.Errorf("set sysctl %s to %s: %w", s.Name, s.Value, err)
}

// dotted is the name as sysctl prints it. A name with an interface in it (eth0.5) can only be written with slashes.
func dotted(name string) string {
	if strings.Contains(name, ".") {
		return name
	}
	return strings.ReplaceAll(name, "/", ".")
}
