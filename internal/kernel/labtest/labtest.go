// Package labtest lets a test declare what it needs from the kernel. "make kernel-test" runs and counts these tests on a kernel with
// IPVS. A plain "go test" skips the tests that the machine cannot run. docs/lab.md explains how to add a test.
//
// A test file that uses the kernel must import this package directly, because kernel-test finds tests by that import.
package labtest

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const (
	// labEnv is set in the lab, where a test fails if its needs are not met.
	labEnv = "KUBE_IPVS_LAB"
	// recordEnv names the file that records the tests whose needs were met.
	recordEnv = "KUBE_IPVS_LAB_RECORD"
	// dataPlaneEnv is "nftables" if the agents of this run use nftables for load balancing, which needs no IPVS.
	dataPlaneEnv = "KUBE_IPVS_DATA_PLANE"
	// ipvsFile exists in every network namespace of a kernel that has loaded IPVS. The path must use thread-self,
	// because a test is in the namespace of its thread.
	ipvsFile = "/proc/thread-self/net/ip_vs"
)

// Need declares that the test needs root and a kernel with IPVS. If the machine lacks them, the test fails in the lab. Elsewhere it is
// skipped, with a hint on how to run it. Need does not isolate the test; NetNS does.
func Need(t testing.TB) {
	t.Helper()
	if os.Getenv(dataPlaneEnv) == "nftables" {
		NeedRoot(t)
		return
	}
	require(t, firstLack(lackOfRoot, lackOfIPVS))
}

// NeedRoot declares that the test needs root, for namespaces, ipset and iptables, but not IPVS.
func NeedRoot(t testing.TB) {
	t.Helper()
	require(t, lackOfRoot())
}

// Run runs a program, whose arguments are the words of line and args, and fails the test unless it succeeds.
func Run(t testing.TB, line string, args ...string) string {
	t.Helper()
	words := append(strings.Fields(line), args...)
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", words, err, out)
	}
	return string(out)
}

// OnKernel reports whether the lab's kernel belongs to a series, such as 5.10.
func OnKernel(series string) bool { return strings.HasPrefix(os.Getenv("LAB_KERNEL"), series+".") }

// Seed returns and logs the seed for random tests: $RAPID_SEED or, if that is unset, a new seed.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed, err := strconv.ParseUint(os.Getenv("RAPID_SEED"), 10, 64)
	if err != nil || seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed: RAPID_SEED=%d", seed)
	return seed
}

// Opened fails the test if opening c failed, and closes c when the test ends.
func Opened(t testing.TB, c io.Closer, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
}

func require(t testing.TB, lack string) {
	t.Helper()
	switch {
	case lack == "":
		record(t)
	case os.Getenv(labEnv) == "1":
		t.Fatalf("the lab does not meet this test's needs: %s", lack)
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
	// Only the result matters, not the exit status of modprobe.
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

// record tells kernel-test that the needs of the test were met. If it cannot write, it fails the test, because kernel-test would miscount.
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
	// Write each line in one call, so that the lines of parallel tests do not mix.
	if _, err := fmt.Fprintf(file, "%s\n", t.Name()); err != nil {
		t.Fatalf("record the test: %v", err)
	}
}

// go test runs tests in the directory of their package.
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
