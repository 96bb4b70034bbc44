package upstream

import (
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/record"
)

const output = `kernel 7.2.13-lab in uml virtual
Running Suite
SSSS
------------------------------
[sig-network] Services should work [Conformance] [sig-network, Conformance]
k8s.io/kubernetes@v1.36.3/test/e2e/network/service.go:1287
  STEP: Creating a kubernetes client
• [47.123 seconds]
------------------------------
SSSSSSSS
------------------------------
[sig-network] DNS should fail [sig-network]
k8s.io/kubernetes@v1.36.3/test/e2e/network/dns.go:1
  [FAILED] in [It] - dns.go:12 @ 11/23/26 06:00:00
• [FAILED] [3.500 seconds]
[sig-network] DNS [It] should fail [sig-network]
k8s.io/kubernetes@v1.36.3/test/e2e/network/dns.go:1

  [FAILED] timed out
  In [It] at: dns.go:12
------------------------------
S [SKIPPED] [0.011 seconds]
[sig-network] LoadBalancers [BeforeEach] should skip [Slow] [sig-network, Slow]
------------------------------
[sig-network] LoadBalancers should skip [Slow] [sig-network, Slow]
k8s.io/kubernetes@v1.36.3/test/e2e/network/loadbalancer.go:1
  [SKIPPED] in [BeforeEach] - loadbalancer.go:1 @ 11/23/26
S [SKIPPED] [0.011 seconds]
[sig-network] LoadBalancers [BeforeEach] should skip [Slow] [sig-network, Slow]

  [SKIPPED] Only supported for providers [gce]
------------------------------
[sig-network] Services should be cut off [sig-network]
`

func TestFollow(t *testing.T) {
	specs := []string{
		"[sig-network] Services should work [Conformance]", "[sig-network] DNS should fail", "[sig-network] LoadBalancers should skip [Slow]",
		"[sig-network] Services should be cut off",
	}
	var got []record.Test
	if err := Follow(strings.NewReader(output), specs, func(o record.Test) { got = append(got, o) }); err != nil {
		t.Fatal(err)
	}
	want := []record.Test{
		{Package: Package, Test: specs[0], Status: "PASS", Seconds: 48},
		{Package: Package, Test: specs[1], Status: "FAIL", Reason: "timed out", Seconds: 4},
		{Package: Package, Test: specs[2], Status: "SKIP", Reason: "Only supported for providers [gce]", Seconds: 1},
	}
	for i := range want {
		want[i].Kernel, want[i].Lab = "7.2.13-lab", "uml virtual"
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestListed(t *testing.T) {
	const list = "The following spec names can be used with 'ginkgo run --focus/skip':\n" +
		"    k8s.io/kubernetes@v1.36.3/test/e2e/network/dns.go:130: [sig-network] DNS should work: always [Conformance]\n" +
		"    k8s.io/kubernetes@v1.36.3/test/e2e/network/dns.go:131: [sig-network] DNS should be slow [Slow]\n"
	got := Listed(list, regexp.MustCompile(`\[sig-network\]`), regexp.MustCompile(`\[Slow\]`))
	if want := []string{"[sig-network] DNS should work: always [Conformance]"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestRemaining: skipped and failed specs run again.
func TestRemaining(t *testing.T) {
	done := []record.Test{{Test: "a", Status: "PASS"}, {Test: "b", Status: "SKIP"}, {Test: "c", Status: "FAIL"}, {Test: "c", Status: "PASS"}}
	if got := Remaining([]string{"a", "b", "c", "d"}, done); !reflect.DeepEqual(got, []string{"b", "d"}) {
		t.Errorf("remaining: %q", got)
	}
}
