package labtest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestNetNSHasIPVS(t *testing.T) {
	NetNS(t)
	if _, err := os.Stat(ipvsFile); err != nil {
		t.Error(err)
	}
}

func TestNetNSIsNewAndItsLoopbackUp(t *testing.T) {
	outside := namespaceID(t)
	t.Run("inside", func(t *testing.T) {
		NetNSNoIPVS(t)
		if inside := namespaceID(t); inside == outside {
			t.Errorf("still in the namespace %s", outside)
		}
		interfaces, err := net.Interfaces()
		if err != nil {
			t.Fatal(err)
		}
		if len(interfaces) != 1 || interfaces[0].Flags&net.FlagUp == 0 {
			t.Errorf("interfaces are %+v, want only lo, up", interfaces)
		}
	})
	if after := namespaceID(t); after != outside {
		t.Errorf("the namespace is %s after the test, was %s before", after, outside)
	}
}

func TestChildProcessesInheritNetNS(t *testing.T) {
	NetNSNoIPVS(t)
	out, err := exec.Command("readlink", "/proc/self/ns/net").Output()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.TrimSpace(string(out)), namespaceID(t); got != want {
		t.Errorf("a child is in %s, the test in %s", got, want)
	}
}

func TestSubtestsEnter(t *testing.T) {
	ns := NetNSNoIPVS(t)
	want := namespaceID(t)
	for _, name := range []string{"first", "second"} {
		t.Run(name, func(t *testing.T) {
			ns.Enter(t)
			if got := namespaceID(t); got != want {
				t.Errorf("in %s, want %s", got, want)
			}
		})
	}
}

func TestMissingNeeds(t *testing.T) {
	for _, lab := range []bool{false, true} {
		t.Run(map[bool]string{false: "outside the lab", true: "in the lab"}[lab], func(t *testing.T) {
			t.Setenv(labEnv, map[bool]string{false: "", true: "1"}[lab])
			fake := &fakeTB{TB: t}
			require(fake, "the kernel has no IPVS")
			if fake.failed != lab || fake.skipped == lab {
				t.Errorf("failed %v, skipped %v", fake.failed, fake.skipped)
			}
			if !strings.Contains(fake.text, "no IPVS") || !lab && !strings.Contains(fake.text, "PKG=./internal/labtest RUN='^TestMissingNeeds$'") {
				t.Errorf("unhelpful message: %s", fake.text)
			}
		})
	}
}

// fakeTB notes how a test would have ended.
type fakeTB struct {
	testing.TB
	failed, skipped bool
	text            string
}

func (f *fakeTB) Fatalf(format string, args ...any) {
	f.failed, f.text = true, fmt.Sprintf(format, args...)
}
func (f *fakeTB) Skipf(format string, args ...any) {
	f.skipped, f.text = true, fmt.Sprintf(format, args...)
}

func namespaceID(t *testing.T) string {
	t.Helper()
	id, err := os.Readlink(ownNetNS)
	if err != nil {
		t.Fatal(err)
	}
	return id
}
