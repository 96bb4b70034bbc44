package iptables

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

func TestHungProcessIsKilled(t *testing.T) {
	// The grandchild keeps the pipe open.
	fakeCommands(t, map[string]string{NFT.command(inet.IPv4, "-save"): "/bin/sleep 60 &\n/bin/sleep 60"})
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := New(Config{Variant: NFT, Families: []inet.Family{inet.IPv4}}).Read(ctx)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v, want the deadline", err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("took %s", took)
	}
}

func TestLockIsNamed(t *testing.T) {
	fakeCommands(t, map[string]string{Legacy.command(inet.IPv4, "-save"): "echo 'Another app is currently holding the xtables lock' >&2; exit 4"})
	_, err := New(Config{Variant: Legacy, Families: []inet.Family{inet.IPv4}}).Read(context.Background())
	if !errors.Is(err, ErrLocked) {
		t.Errorf("error is %v, want ErrLocked", err)
	}
}
