package labtest_test

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

func TestNetNSHasIPVS(t *testing.T) {
	labtest.NetNS(t)
	if _, err := os.Stat("/proc/thread-self/net/ip_vs"); err != nil {
		t.Error(err)
	}
}

func TestNetNSIsNewAndItsLoopbackUp(t *testing.T) {
	outside := namespaceID(t)
	t.Run("inside", func(t *testing.T) {
		labtest.NetNSNoIPVS(t)
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
		t.Errorf("the namespace is %s after the test, but was %s before", after, outside)
	}
}

func TestChildProcessesInheritNetNS(t *testing.T) {
	labtest.NetNSNoIPVS(t)
	out, err := exec.Command("readlink", "/proc/self/ns/net").Output()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.TrimSpace(string(out)), namespaceID(t); got != want {
		t.Errorf("the child is in %s, but the test is in %s", got, want)
	}
}

func TestSubtestsEnter(t *testing.T) {
	ns := labtest.NetNSNoIPVS(t)
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

func namespaceID(t *testing.T) string {
	t.Helper()
	id, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	return id
}
