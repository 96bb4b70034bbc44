package netdev

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func tree(t *testing.T, files map[string]string) sysctlTree {
	t.Helper()
	dir := t.TempDir()
	for name, value := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return sysctlTree(dir)
}

func TestReadSysctlsLeavesMissingOut(t *testing.T) {
	b := &Backend{sysctls: tree(t, map[string]string{"net/a": "1\n", "net/b": "4096\t87380\n"})}
	got, err := b.ReadSysctls(context.Background(), []string{"net/a", "net/b", "net/c"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"net/a": "1", "net/b": "4096\t87380"}, got); diff != "" {
		t.Errorf("sysctls: -want +got\n%s", diff)
	}
}

func TestWriteSysctl(t *testing.T) {
	files := tree(t, map[string]string{"net/a": "0"})
	if err := files.write(kernel.SysctlSetting{Name: "net/a", Value: "1"}); err != nil {
		t.Error(err)
	}
	if value, err := files.read("net/a"); value != "1" {
		t.Errorf("read %q, %v after writing 1", value, err)
	}
	err := files.write(kernel.SysctlSetting{Name: "net/ipv4/vs/conntrack", Value: "1"})
	if !errors.Is(err, kernel.ErrUnavailable) || !strings.Contains(err.Error(), "modprobe ip_vs") {
		t.Errorf("missing sysctl: %v, want ErrUnavailable and a hint about ip_vs", err)
	}
	err = files.write(kernel.SysctlSetting{Name: "net/netfilter/nf_conntrack_max", Value: "1"})
	if !errors.Is(err, kernel.ErrUnavailable) || !strings.Contains(err.Error(), "modprobe nf_conntrack") {
		t.Errorf("missing sysctl: %v, want ErrUnavailable and a hint about nf_conntrack", err)
	}
	if _, err := os.Stat(files.path("net/ipv4/vs/conntrack")); err == nil {
		t.Error("a missing sysctl was created as a file")
	}
}

func TestWriteSysctlDetectsAnIgnoredValue(t *testing.T) {
	files := tree(t, nil)
	if err := os.MkdirAll(filepath.Dir(files.path("net/a")), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/null", files.path("net/a")); err != nil {
		t.Fatal(err)
	}
	err := files.write(kernel.SysctlSetting{Name: "net/a", Value: "1"})
	if err == nil || !strings.Contains(err.Error(), `value is "" after writing "1"`) {
		t.Errorf("error is %v", err)
	}
}

func TestReadOnlySysctlSaysWhatToRun(t *testing.T) {
	for name, command := range map[string]string{
		"net/ipv4/ip_forward":            "sysctl -w net.ipv4.ip_forward=1",
		"net/ipv4/conf/eth0.5/rp_filter": "sysctl -w net/ipv4/conf/eth0.5/rp_filter=1",
	} {
		err := explainSysctl(kernel.SysctlSetting{Name: name, Value: "1"}, false, &os.PathError{Op: "open", Err: unix.EROFS})
		if !strings.Contains(err.Error(), command) {
			t.Errorf("error %q does not contain %q", err, command)
		}
	}
}

func TestMountedSysctlsArePreferred(t *testing.T) {
	own := tree(t, map[string]string{"net/a": "1"})
	mounted := tree(t, map[string]string{"net/a": "1"})
	if got := chooseSysctls(mounted, own); got != mounted {
		t.Errorf("chose %s, want the mounted tree %s", got, mounted)
	}
	if got := chooseSysctls(sysctlTree(t.TempDir()), own); got != own {
		t.Errorf("chose %s, want %s: nothing is mounted at the other path", got, own)
	}
}
