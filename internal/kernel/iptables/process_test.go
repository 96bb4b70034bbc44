package iptables

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

func TestHungProcessIsKilled(t *testing.T) {
	// The grandchild keeps the pipe open until it ends.
	ended := filepath.Join(t.TempDir(), "ended")
	fakeCommands(t, map[string]string{NFT.command(inet.IPv4, "-save"): "(/bin/sleep 60; >" + ended + ") &\n/bin/sleep 60"})
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_, err := New(Config{Variant: NFT, Families: []inet.Family{inet.IPv4}}).Read(ctx, inet.IPv4)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v, want the deadline", err)
	}
	if _, err := os.Stat(ended); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the read waited for the grandchild: %v", err)
	}
}

func TestSlowProcessGetsMoreTime(t *testing.T) {
	save := NFT.command(inet.IPv4, "-save")
	fakeCommands(t, map[string]string{save: "/bin/sleep 0.2; echo '*filter'; echo COMMIT"})
	b := New(Config{Variant: NFT, Families: []inet.Family{inet.IPv4}})
	b.runner.limits.ofProgram.Store(save, 10*time.Millisecond)
	if _, err := b.Read(t.Context(), inet.IPv4); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "killed after 10ms") {
		t.Errorf("got %v", err)
	}
	if _, err := b.Read(t.Context(), inet.IPv4); err != nil {
		t.Error(err)
	}
	for _, want := range []time.Duration{shortest, 2 * shortest, 4 * shortest, 8 * shortest, 16 * shortest, longest, longest} {
		limit := b.runner.limits.get(save)
		if limit != want {
			t.Errorf("limit %s, want %s", limit, want)
		}
		b.runner.limits.set(save, 2*limit)
	}
	if other := b.runner.limits.get("iptables-nft-restore"); other != shortest {
		t.Errorf("the limit of another program changed to %s", other)
	}
}

func TestLockIsNamed(t *testing.T) {
	fakeCommands(t, map[string]string{Legacy.command(inet.IPv4, "-save"): "echo 'Another app is currently holding the xtables lock' >&2; exit 4"})
	_, err := New(Config{Variant: Legacy, Families: []inet.Family{inet.IPv4}}).Read(context.Background(), inet.IPv4)
	if !errors.Is(err, errLocked) {
		t.Errorf("error is %v, want errLocked", err)
	}
}

// Most nodes have no legacy tables, and each process would delay the agent's start.
func TestSaveStartsNothingWithoutLegacyTables(t *testing.T) {
	fakeCommands(t, family(Legacy, "echo '*nat'; echo COMMIT", ""))
	for tables, starts := range map[string]uint64{"": 0, "nat\n": 1} {
		listTables(t, tables)
		b := New(Config{Variant: Legacy, Families: inet.Families})
		if _, err := b.Read(context.Background(), inet.IPv4); err != nil || b.Processes() != starts {
			t.Errorf("tables %q: started %d processes, want %d; %v", tables, b.Processes(), starts, err)
		}
	}
}

// Truncated output is an error. Otherwise, the agent would conclude that rules are missing, and add them again.
func TestIncompleteOutput(t *testing.T) {
	text := "# Generated\n*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -j DROP\nCOMMIT\n# Completed\n*nat\n:INPUT ACCEPT [0:0]\n-A INPUT -j X\nCOMMIT"
	for _, v := range []Variant{NFT, Legacy} {
		file := filepath.Join(t.TempDir(), "output")
		fakeCommands(t, family(v, "exec /bin/cat "+file, ""))
		listTables(t, "nat\nfilter\n")
		for end := range len(text) + 1 {
			if err := os.WriteFile(file, []byte(text[:end]), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := New(Config{Variant: v, Chains: ourChains}).Read(t.Context(), inet.IPv4)
			if (err == nil) != (end == len(text)) {
				t.Errorf("%s: %q: %v", v, text[:end], err)
			}
		}
	}
}

func TestEndlessOutput(t *testing.T) {
	for _, to := range []string{"1", "2"} {
		fakeCommands(t, family(NFT, "exec /bin/cat /dev/zero >&"+to, ""))
		_, err := New(Config{Variant: NFT}).Read(t.Context(), inet.IPv4)
		if !errors.Is(err, errTooLong) || !strings.Contains(err.Error(), NFT.command(inet.IPv4, "-save")) {
			t.Errorf("got %v", err)
		}
	}
}

func TestDetectAsksOnce(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	fakeCommands(t, family(NFT, "echo $0 >>"+log, "echo $0 >>"+log))
	if _, err := Detect(context.Background()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Fields(string(text)); len(lines) != 2 { // restore ran for both families
		t.Errorf("started %v", lines)
	}
}

func TestUnkillableProcess(t *testing.T) {
	save := NFT.command(inet.IPv4, "-save")
	fakeCommands(t, family(NFT, "echo '*filter'; echo COMMIT", ""))
	b := New(Config{Variant: NFT})
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		blocked := make(chan struct{})
		if err := b.runner.wait(ctx, save, func() error { <-blocked; return nil }); !errors.Is(err, errUnkillable) {
			t.Errorf("got %v", err)
		}
		if _, err := b.Read(t.Context(), inet.IPv4); !errors.Is(err, errUnkillable) || !strings.Contains(err.Error(), save) || b.Processes() > 0 {
			t.Errorf("before the process ended: error %v, %d processes started", err, b.Processes())
		}
		close(blocked)
		synctest.Wait()
	})
	if _, err := b.Read(t.Context(), inet.IPv4); err != nil {
		t.Errorf("after the process ended: %v", err)
	}
}
