package iptables

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

func TestHungProcessIsKilled(t *testing.T) {
	// The grandchild keeps the pipe open until it ends.
	ended := filepath.Join(t.TempDir(), "ended")
	fakeCommands(t, map[string]string{NFT.command(inet.IPv4, "-save"): "(/bin/sleep 60; >" + ended + ") &\n/bin/sleep 60"})
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_, err := New(Config{Variant: NFT, Families: []inet.Family{inet.IPv4}}).Read(ctx)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v, want the deadline", err)
	}
	if _, err := os.Stat(ended); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the read waited for the grandchild: %v", err)
	}
}

func TestLockIsNamed(t *testing.T) {
	fakeCommands(t, map[string]string{Legacy.command(inet.IPv4, "-save"): "echo 'Another app is currently holding the xtables lock' >&2; exit 4"})
	_, err := New(Config{Variant: Legacy, Families: []inet.Family{inet.IPv4}}).Read(context.Background())
	if !errors.Is(err, ErrLocked) {
		t.Errorf("error is %v, want ErrLocked", err)
	}
}
