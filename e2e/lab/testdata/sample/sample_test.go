// Package sample holds kernel tests with every end a test can have, for the lab's test of itself.
package sample

import (
	"os"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/labtest"
)

func TestRuns(t *testing.T) {
	labtest.NetNS(t)
	if _, err := os.Stat("sample_test.go"); err != nil {
		t.Errorf("not in the source folder: %v", err)
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
