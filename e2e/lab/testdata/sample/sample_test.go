// Package sample contains kernel tests with every possible outcome, for the lab's self-test.
package sample

import (
	"os"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

func TestRuns(t *testing.T) {
	labtest.NetNS(t)
	if _, err := os.Stat("sample_test.go"); err != nil {
		t.Errorf("not in the source directory: %v", err)
	}
}

func TestFails(t *testing.T) {
	ns := labtest.NetNS(t)
	t.Run("sub", func(t *testing.T) {
		ns.Enter(t)
		t.Error("why it failed")
	})
}

func TestSkips(t *testing.T) {
	labtest.Need(t)
	t.Skip("a skip nobody would see")
}

func TestReturnsEarly(t *testing.T) {
	if os.Getenv("NEVER_SET") == "" {
		return
	}
	labtest.Need(t)
}
