package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// HideModule unloads a kernel module, and the modules that extend it, and prevents loading it until show is called. The modprobe that the kernel
// starts reads only the machine's configuration. A rule there must not outlive this process, so the rule applies only while its file is locked.
func HideModule(t testing.TB, module string) (show func()) {
	t.Helper()
	rule, err := os.Create("/etc/modprobe.d/kube-ipvs-test-hides-" + module + ".conf")
	if err != nil {
		t.Fatal(err)
	}
	show = sync.OnceFunc(func() {
		if err := os.Remove(rule.Name()); err != nil {
			t.Error(err)
		}
		rule.Close()
	})
	t.Cleanup(show)
	if err := unix.Flock(int(rule.Fd()), unix.LOCK_EX); err != nil {
		t.Fatalf("locking %s: %v", rule.Name(), err)
	}
	if _, err := fmt.Fprintf(rule, "install %s flock --nonblock %s modprobe --ignore-install %[1]s\n", module, rule.Name()); err != nil {
		t.Fatal(err)
	}
	Eventually(t, time.Minute, "the module "+module+" is unloaded", func() error {
		loaded, err := filepath.Glob("/sys/module/" + module + "*") // such as ip_vs_rr for ip_vs
		for _, dir := range loaded {
			if out, failed := exec.Command("modprobe", "-r", filepath.Base(dir)).CombinedOutput(); failed != nil {
				err = fmt.Errorf("modprobe -r %s: %w: %s", filepath.Base(dir), failed, out)
			}
		}
		if _, missing := os.Stat("/sys/module/" + module); missing != nil {
			return nil
		}
		return err
	})
	return show
}
