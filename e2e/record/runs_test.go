package record

import (
	"strings"
	"testing"
)

func TestWithRuns(t *testing.T) {
	const page = "Before.\n<!-- table kernels -->\nold\n<!-- end -->\nAfter.\n"
	lines := []Line{
		{Part: "stories-5.10", Kernel: "5.10.0-46-amd64", State: Passed, Passed: 1},
		{Part: "stories-5.10", Kernel: "5.10.0-47-amd64", State: Failed, Passed: 8, Failed: 2, Seconds: 90, Commit: "0123456789", Date: "2030-01-31T10:00:00Z"},
		{Part: "fuzz", Kernel: "6.18.5", State: Passed},
	}
	got, err := WithRuns("docs/kernel-support.md", page, lines)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Before.\n<!-- table kernels -->\n| what ran |", "\n<!-- end -->\nAfter.\n",
		"\n| each kind of Service on Debian's 5.10 | 5.10.0-47-amd64 | failed: 8 passed, 2 failed | 1m30s | 01234567, 2030-01-31 |\n",
		"\n| every kernel test on Debian's 5.10 | | has not run | | |\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	for _, wrong := range []string{"old", "5.10.0-46", "6.18.5"} {
		if strings.Contains(got, wrong) {
			t.Errorf("%q is in\n%s", wrong, got)
		}
	}
	if _, err := WithRuns("docs/kernel-support.md", "no table", lines); err == nil {
		t.Error("a page without the table was accepted")
	}
}

// TestWithRunsOfKubernetes: the version in the table is the one that a run tested, even if the part now tests a newer version.
func TestWithRunsOfKubernetes(t *testing.T) {
	const path, page = "docs/compatibility.md", "<!-- table kubernetes -->\n<!-- end -->\n"
	lines := []Line{
		{
			Part: "kubernetes-1.33", Targets: []string{"chart-test KUBERNETES=1.33.7 V=1", "e2e KUBERNETES=1.33.7"},
			State: Passed, Passed: 97, Commit: "0123456789", Date: "2030-01-31T10:00:00Z",
		},
		{Part: "kubernetes", State: Passed, Passed: 55},
	}
	got, err := WithRuns(path, page, lines)
	if err != nil {
		t.Fatal(err)
	}
	const want = " of Kubernetes 1.33 | 1.33.7 | 97 passed | 0s | 01234567, 2030-01-31 |\n"
	if !strings.Contains(got, want) || strings.Contains(got, "55 passed") {
		t.Errorf("want %q and no other run in\n%s", want, got)
	}
}
