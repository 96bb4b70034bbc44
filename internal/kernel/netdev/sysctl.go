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

type sysctlTree string

// Both trees show the values of the calling thread's network namespace. In a container, /proc/sys is read-only, and the runtime
// rejects mounts inside /proc, so the host's /proc/sys/net is mounted at another path.
const (
	ownSysctls     sysctlTree = "/proc/sys"
	mountedSysctls sysctlTree = "/host/proc/sys"
)

// SysctlFile returns the file to write for a sysctl below net/.
func SysctlFile(name string) string { return chooseSysctls(mountedSysctls, ownSysctls).path(name) }

func chooseSysctls(mounted, own sysctlTree) sysctlTree {
	if _, err := os.Stat(mounted.path("net")); err == nil {
		return mounted
	}
	return own
}

// ReadSysctls returns the values of the named sysctls (net/ipv4/ip_forward). Sysctls that this kernel lacks are absent.
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

// write sets a sysctl and reads it back, because the kernel clamps some values and ignores others.
func (t sysctlTree) write(s kernel.SysctlSetting) error {
	if err := t.writeFile(s); err != nil {
		return explainSysctl(s, t.fixed(s.Name), err)
	}
	value, err := t.read(s.Name)
	if err != nil {
		return err
	}
	// The kernel may separate the words of a value with different white space.
	if !slices.Equal(strings.Fields(value), strings.Fields(s.Value)) {
		return fmt.Errorf("set sysctl %s: value is %q after writing %q", s.Name, value, s.Value)
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

// FixedSysctl reports whether only the initial network namespace can set a sysctl below net/, such as nf_conntrack_max, and this is
// another one.
func FixedSysctl(name string) bool { return chooseSysctls(mountedSysctls, ownSysctls).fixed(name) }

func (t sysctlTree) fixed(name string) bool {
	info, err := os.Stat(t.path(name))
	return err == nil && info.Mode().Perm()&0o222 == 0
}

func explainSysctl(s kernel.SysctlSetting, fixed bool, err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission) && fixed:
		return fmt.Errorf("set sysctl %s: it applies to the whole machine, and can be set only in the host's network namespace; "+
			"run the agent there (hostNetwork: true), or run on the host: sysctl -w %s=%s: %w: %w",
			s.Name, s.Dotted(), s.Value, kernel.ErrUnavailable, err)
	case errors.Is(err, unix.EROFS), errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("set sysctl %s: not writable in this container; mount the host's /proc/sys/net writable at %s, "+
			"or run on the host: sysctl -w %s=%s: %w", s.Name, mountedSysctls.path("net"), s.Dotted(), s.Value, err)
	case errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(s.Name, "net/ipv4/vs/"):
		return fmt.Errorf("set sysctl %s: the kernel has no IPVS, or its IPVS lacks this sysctl (run `modprobe ip_vs` on the host): %w: %w",
			s.Name, kernel.ErrUnavailable, err)
	case errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(s.Name, "net/netfilter/nf_conntrack"):
		return fmt.Errorf("set sysctl %s: the kernel has no connection tracking, or its connection tracking lacks this sysctl "+
			"(run `modprobe nf_conntrack` on the host): %w: %w", s.Name, kernel.ErrUnavailable, err)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("set sysctl %s: %w: %w", s.Name, kernel.ErrUnavailable, err)
	}
	return fmt.Errorf("set sysctl %s to %s: %w", s.Name, s.Value, err)
}
