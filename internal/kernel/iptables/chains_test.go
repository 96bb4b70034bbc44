package iptables

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

func be32(n int32) []byte { return binary.BigEndian.AppendUint32(nil, uint32(n)) }

func chainMessage(family byte, hook, priority int32, policy, rules int32) []byte {
	b := []byte{family, 0, 0, 0}
	b = nlbatch.AppendString(b, unix.NFTA_CHAIN_TABLE, "guard")
	b = nlbatch.AppendString(b, unix.NFTA_CHAIN_NAME, "in")
	if hook >= 0 {
		b = nlbatch.AppendNest(b, unix.NFTA_CHAIN_HOOK, func(b []byte) []byte {
			b = nlbatch.AppendAttr(b, unix.NFTA_HOOK_HOOKNUM, be32(hook))
			return nlbatch.AppendAttr(b, unix.NFTA_HOOK_PRIORITY, be32(priority))
		})
		b = nlbatch.AppendAttr(b, unix.NFTA_CHAIN_POLICY, be32(policy))
		b = nlbatch.AppendString(b, unix.NFTA_CHAIN_TYPE, "filter")
	}
	return nlbatch.AppendAttr(b, unix.NFTA_CHAIN_USE, be32(rules))
}

func TestDecodeChain(t *testing.T) {
	c, hooked, err := decodeChain(chainMessage(unix.NFPROTO_INET, int32(kernel.HookInput), -150, wire.Drop, 3))
	want := kernel.BaseChain{Family: "inet", Table: "guard", Name: "in", Kind: "filter", Hook: kernel.HookInput, Priority: -150, Drops: true, Rules: 3}
	if err != nil || !hooked || c != want {
		t.Errorf("%+v, %t, %v; want %+v", c, hooked, err, want)
	}
	if c.String() != "nft list chain inet guard in" || !c.Covers(inet.IPv4) || !c.Covers(inet.IPv6) {
		t.Errorf("%s covers IPv4: %t, IPv6: %t", c, c.Covers(inet.IPv4), c.Covers(inet.IPv6))
	}
	for name, message := range map[string][]byte{
		"no hook": chainMessage(unix.NFPROTO_IPV4, -1, 0, 0, 3), "ARP": chainMessage(unix.NFPROTO_ARP, 0, 0, 1, 3),
	} {
		if c, hooked, err := decodeChain(message); hooked || err != nil {
			t.Errorf("%s: %+v, %t, %v", name, c, hooked, err)
		}
	}
	if c, _, _ := decodeChain(chainMessage(unix.NFPROTO_IPV6, 0, 0, 1, 0)); c.Drops || c.Covers(inet.IPv4) || !c.Covers(inet.IPv6) {
		t.Errorf("%+v", c)
	}
}

func FuzzDecodeChain(f *testing.F) {
	f.Add(chainMessage(unix.NFPROTO_INET, 1, -150, 0, 3))
	f.Add([]byte{})
	f.Fuzz(func(_ *testing.T, b []byte) { _, _, _ = decodeChain(b) })
}
