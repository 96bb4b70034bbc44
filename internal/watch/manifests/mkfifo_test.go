package manifests

import (
	"testing"

	"golang.org/x/sys/unix"
)

func mustMkfifo(t *testing.T, path string) {
	t.Helper()
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
}
