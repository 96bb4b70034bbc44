package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// nftFamilies lists the families whose chains can see packets to virtual servers.
var nftFamilies = map[byte]string{
	unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_INET: "inet", unix.NFPROTO_BRIDGE: "bridge", unix.NFPROTO_NETDEV: "netdev",
}

// BaseChains lists the native nftables base chains of all families. If iptables-nft is in use, its chains are excluded, because List returns
// them.
func (b *Backend) BaseChains(ctx context.Context) ([]kernel.BaseChain, error) {
	conn, err := nlbatch.Dial(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("list the nftables chains: %w", err)
	}
	defer conn.Close()
	payloads, err := conn.Dump(ctx, nlbatch.Request{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETCHAIN, Payload: []byte{unix.NFPROTO_UNSPEC, 0, 0, 0}})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) { // a kernel without nf_tables
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the nftables chains: %w", err)
	}
	var chains []kernel.BaseChain
	for _, p := range payloads {
		c, hooked, err := decodeChain(p)
		if err != nil {
			return nil, fmt.Errorf("list the nftables chains: %w", err)
		}
		if hooked && !(b.variant == NFT && c.Family != "inet" && allTables[c.Table]) {
			chains = append(chains, c)
		}
	}
	slices.SortStableFunc(chains, func(a, b kernel.BaseChain) int { return int(a.Priority) - int(b.Priority) })
	return chains, nil
}

// hooked is false for chains that no hook calls, and for chains that packets to Services do not traverse.
func decodeChain(payload []byte) (c kernel.BaseChain, hooked bool, err error) {
	table, name, listed, err := wire.DecodeChain(payload)
	family, known := nftFamilies[listed.Family]
	c = kernel.BaseChain{
		Family: family, Table: table, Name: name, Kind: listed.Hook.Type, Hook: kernel.Hook(listed.Hook.Number), Priority: listed.Hook.Priority,
		Drops: listed.Policy == wire.Drop, Rules: listed.Used,
	}
	if family == "bridge" || family == "netdev" {
		c.Hook = kernel.HookOther
	}
	return c, known && listed.Hook.Type != "", err
}
