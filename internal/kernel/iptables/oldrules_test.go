package iptables

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func (n *node) oldRules() []kernel.OldRules {
	n.Helper()
	old, err := n.FindOldRules(context.Background())
	n.must(err)
	return old
}

func TestOldRulesWithoutTheOtherVariant(t *testing.T) {
	fakeCommands(t, map[string]string{NFT.command(inet.IPv4, ""): "exit 0"})
	if old, err := New(Config{Variant: NFT}).FindOldRules(context.Background()); len(old) > 0 || err != nil {
		t.Errorf("found %v, %v", old, err)
	}
}

func TestUnreadableOldRules(t *testing.T) {
	fakeCommands(t, map[string]string{
		Legacy.command(inet.IPv4, ""): "exit 0", Legacy.command(inet.IPv4, "-restore"): "exit 0",
		Legacy.command(inet.IPv4, "-save"): "echo broken >&2; exit 1",
	})
	old, err := New(Config{Variant: NFT}).FindOldRules(context.Background())
	if len(old) > 0 || err == nil || !strings.Contains(err.Error(), "iptables-legacy") {
		t.Errorf("found %v, %v; want an error that names the variant", old, err)
	}
}

func TestTheVariantInUseIsKept(t *testing.T) {
	op := kernel.Op{Verb: kernel.Delete, Object: kernel.OldRules{Variant: string(NFT), Family: inet.IPv4}}
	if err := New(Config{Variant: NFT}).Apply(context.Background(), []kernel.Op{op})[0]; !errors.Is(err, kernel.ErrUnavailable) {
		t.Errorf("%s: %v", op, err)
	}
}
