package iptables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// BaseChain is a chain of nftables that a hook calls, and that iptables does not show.
type BaseChain struct {
	// Family is nftables' word: ip, ip6 or inet.
	Family, Table, Name string
	Hook                Hook
	Priority            int32
	// Drops is the chain's policy; Rules is how many rules it has.
	Drops bool
	Rules uint32
}

// Covers says whether packets of the family pass the chain.
func (c BaseChain) Covers(f inet.Family) bool {
	return c.Family == "inet" || c.Family == map[inet.Family]string{inet.IPv4: "ip", inet.IPv6: "ip6"}[f]
}

// String is the command that shows the chain.
func (c BaseChain) String() string {
	return fmt.Sprintf("nft list chain %s %s %s", c.Family, c.Table, c.Name)
}

// Hook is where netfilter calls a chain, as the kernel numbers it.
type Hook uint32

// The hooks that packets for virtual servers pass.
const (
	HookPrerouting  Hook = unix.NF_INET_PRE_ROUTING
	HookInput       Hook = unix.NF_INET_LOCAL_IN
	HookOutput      Hook = unix.NF_INET_LOCAL_OUT
	HookPostrouting Hook = unix.NF_INET_POST_ROUTING
)

// Numbers of nftables' protocol (linux/netfilter/nf_tables.h).
const (
	nftSubsystem = 10
	nftGetChain  = 4

	chainTable  = 1
	chainName   = 3
	chainHook   = 4
	chainPolicy = 5
	chainUse    = 6

	hookNumber   = 1
	hookPriority = 2

	nftHeader  = 4 // struct nfgenmsg: the first byte is the family
	policyDrop = 0
)

// nftFamilies are those of which packets for virtual servers can be.
var nftFamilies = map[byte]string{unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_INET: "inet"}

// BaseChains lists nftables' own base chains, of all families together. Those that iptables-nft has made are left out where that is
// the variant in use: List has them.
func (b *Backend) BaseChains(ctx context.Context) ([]BaseChain, error) {
	conn, err := nlbatch.Dial(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("list nftables' chains: %w", err)
	}
	defer conn.Close()
	payloads, err := conn.Dump(ctx, nlbatch.Request{Type: nftSubsystem<<8 | nftGetChain, Payload: []byte{unix.NFPROTO_UNSPEC, 0, 0, 0}})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) { // a kernel without nf_tables
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list nftables' chains: %w", err)
	}
	var chains []BaseChain
	for _, p := range payloads {
		c, hooked, err := decodeChain(p)
		if err != nil {
			return nil, fmt.Errorf("list nftables' chains: %w", err)
		}
		if hooked && !(b.variant == NFT && c.Family != "inet" && allTables[c.Table]) {
			chains = append(chains, c)
		}
	}
	slices.SortStableFunc(chains, func(a, b BaseChain) int { return int(a.Priority) - int(b.Priority) })
	return chains, nil
}

// decodeChain reads one chain. The second result is false for those that no hook calls, or not with our packets.
func decodeChain(payload []byte) (c BaseChain, hooked bool, err error) {
	if len(payload) < nftHeader {
		return c, false, fmt.Errorf("chain of %d bytes", len(payload))
	}
	var known bool
	c.Family, known = nftFamilies[payload[0]]
	err = nlbatch.EachAttr(payload[nftHeader:], func(typ uint16, v []byte) (err error) {
		switch typ {
		case chainTable:
			c.Table = nlbatch.String(v)
		case chainName:
			c.Name = nlbatch.String(v)
		case chainHook:
			hooked = true
			return c.decodeHook(v)
		case chainPolicy:
			var policy uint32
			policy, err = nlbatch.BigUint32(v)
			c.Drops = err == nil && policy == policyDrop
		case chainUse:
			c.Rules, err = nlbatch.BigUint32(v)
		}
		return err
	})
	return c, hooked && known, err
}

func (c *BaseChain) decodeHook(v []byte) error {
	return nlbatch.EachAttr(v, func(typ uint16, v []byte) error {
		n, err := uint32(0), error(nil)
		switch typ {
		case hookNumber:
			n, err = nlbatch.BigUint32(v)
			c.Hook = Hook(n)
		case hookPriority:
			if len(v) < 4 {
				return fmt.Errorf("priority of %d bytes", len(v))
			}
			c.Priority = int32(binary.BigEndian.Uint32(v))
		}
		return err
	})
}
