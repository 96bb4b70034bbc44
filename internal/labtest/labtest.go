// Package labtest lets a test say what it needs of the kernel. "make kernel-test" runs the tests that use it where the
// kernel has IPVS and counts them; a plain "go test" skips those its machine cannot run. docs/lab.md tells how to add one.
//
// A test file that uses the kernel imports this package itself: that is how kernel-test finds it.
package labtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const (
	// labEnv is set in the lab, where nothing a test needs may be missing.
	labEnv = "KUBE_IPVS_LAB"
	// recordEnv names the file that collects the names of tests that got what they need.
	recordEnv = "KUBE_IPVS_LAB_RECORD"
	// ipvsFile exists in every network namespace of a kernel that has loaded IPVS. Its thread-self matters: the
	// namespace of a test is that of its thread.
	ipvsFile = "/proc/thread-self/net/ip_vs"
)

// Need declares that the test needs root and a kernel with IPVS. Without them the test fails in the lab;
// outside the lab it is skipped, with a hint how to run it. Need does not isolate the test; NetNS does.
func Need(t testing.TB) {
	t.Helper()
	require(t, firstLack(lackOfRoot, lackOfIPVS))
}

// NeedRoot declares that the test needs root, for namespaces, ipset and iptables, but not IPVS.
func NeedRoot(t testing.TB) {
	t.Helper()
	require(t, lackOfRoot())
}

// FreshKernel declares that the test changes or measures kernel state outside its namespace. In a resident guest, whose kernel other
// tests have used, it fails.
func FreshKernel(t testing.TB) {
	t.Helper()
	if os.Getenv("LAB_RESIDENT") != "" {
		t.Fatal("this test needs a kernel that no other test has used: end the resident guest with make lab-down, or set LAB=qemu")
	}
}

func require(t testing.TB, lack string) {
	t.Helper()
	switch {
	case lack == "":
		record(t)
	case os.Getenv(labEnv) == "1":
		t.Fatalf("the lab does not have what this test needs: %s", lack)
	default:
		t.Skipf("NOT RUN: %s. To run it: make kernel-test PKG=%s RUN='^%s$'", lack, packagePath(), topLevel(t.Name()))
	}
}

func firstLack(checks ...func() string) string {
	for _, check := range checks {
		if lack := check(); lack != "" {
			return lack
		}
	}
	return ""
}

func lackOfRoot() string {
	if os.Geteuid() != 0 {
		return "the user is not root"
	}
	return ""
}

func lackOfIPVS() string {
	if hasIPVS() {
		return ""
	}
	// Its exit status does not matter, only whether IPVS is there afterwards.
	_ = exec.Command("modprobe", "ip_vs").Run()
	if hasIPVS() {
		return ""
	}
	return "the kernel has no IPVS"
}

func hasIPVS() bool {
	_, err := os.Stat(ipvsFile)
	return err == nil
}

// record lets kernel-test know that the test has what it needs. A record that cannot be written fails the test: the
// count would be wrong.
func record(t testing.TB) {
	t.Helper()
	path := os.Getenv(recordEnv)
	if path == "" {
		return
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatalf("record the test: %v", err)
	}
	defer file.Close()
	// One write per line, so that tests in parallel do not mix.
	if _, err := fmt.Fprintf(file, "%s\n", t.Name()); err != nil {
		t.Fatalf("record the test: %v", err)
	}
}

// packagePath is the package under test as one writes it on the command line; go test starts in its folder.
func packagePath() string {
	dir, err := os.Getwd()
	if err != nil {
		return "."
	}
	for root := dir; root != filepath.Dir(root); root = filepath.Dir(root) {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err != nil {
			continue
		}
		if rel, err := filepath.Rel(root, dir); err == nil {
			return "./" + rel
		}
	}
	return dir
}

func topLevel(name string) string {
	top, _, _ := strings.Cut(name, "/")
	return top
}
