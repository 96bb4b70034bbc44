package iptables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

const (
	nftHeader  = 4 // struct nfgenmsg: the first byte is the family
	policyDrop = 0
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
	if len(payload) < nftHeader {
		return c, false, fmt.Errorf("chain of %d bytes", len(payload))
	}
	var known bool
	c.Family, known = nftFamilies[payload[0]]
	err = nlbatch.EachAttr(payload[nftHeader:], func(typ uint16, v []byte) (err error) {
		switch typ {
		case unix.NFTA_CHAIN_TABLE:
			c.Table = nlbatch.String(v)
		case unix.NFTA_CHAIN_NAME:
			c.Name = nlbatch.String(v)
		case unix.NFTA_CHAIN_TYPE:
			c.Kind = nlbatch.String(v)
		case unix.NFTA_CHAIN_HOOK:
			hooked = true
			return decodeHook(&c, v)
		case unix.NFTA_CHAIN_POLICY:
			var policy uint32
			policy, err = nlbatch.BigUint32(v)
			c.Drops = err == nil && policy == policyDrop
		case unix.NFTA_CHAIN_USE:
			c.Rules, err = nlbatch.BigUint32(v)
		}
		return err
	})
	if c.Family == "bridge" || c.Family == "netdev" {
		c.Hook = kernel.HookOther
	}
	return c, hooked && known, err
}

func decodeHook(c *kernel.BaseChain, v []byte) error {
	return nlbatch.EachAttr(v, func(typ uint16, v []byte) error {
		n, err := uint32(0), error(nil)
		switch typ {
		case unix.NFTA_HOOK_HOOKNUM:
			n, err = nlbatch.BigUint32(v)
			c.Hook = kernel.Hook(n)
		case unix.NFTA_HOOK_PRIORITY:
			if len(v) < 4 {
				return fmt.Errorf("priority of %d bytes", len(v))
			}
			c.Priority = int32(binary.BigEndian.Uint32(v))
		}
		return err
	})
}
