package netdev

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// NodeAddresses returns the addresses of the node's interfaces other than kube-ipvs0, renamed or not, sorted and without duplicates. It
// excludes loopback and link-local addresses, which every node has, and tentative IPv6 addresses, which are not usable yet. It includes
// deprecated addresses.
func (b *Backend) NodeAddresses(ctx context.Context) ([]netip.Addr, error) {
	for attempt := 1; ; attempt++ {
		addrs, stable, err := b.nodeAddresses(ctx)
		if err != nil {
			return nil, fmt.Errorf("read the node's addresses: %w", err)
		}
		if stable {
			return addrs, nil
		}
		if attempt == dumpAttempts {
			return nil, fmt.Errorf("read the node's addresses: %s keeps being recreated", kernel.Device)
		}
	}
}

// Node reads the node's addresses and networks.
func (b *Backend) Node(ctx context.Context) (*kernel.Node, error) {
	addrs, err := b.NodeAddresses(ctx)
	if err != nil {
		return nil, err
	}
	network, err := b.Network(ctx)
	if err != nil {
		return nil, err
	}
	return &kernel.Node{Addresses: addrs, Network: network}, nil
}

// nodeAddresses is one attempt. The result is not stable if kube-ipvs0 was recreated in the meantime, because virtual addresses could then
// count as the node's.
func (b *Backend) nodeAddresses(ctx context.Context) (addrs []netip.Addr, stable bool, err error) {
	before, err := b.ourIndex()
	if err != nil {
		return nil, false, err
	}
	found, err := b.addressesOf(ctx, func(a address) bool { return a.index != before && a.ofNode() && !a.tentative })
	if err != nil {
		return nil, false, err
	}
	virtual := map[int]bool{}
	for _, a := range found {
		if _, known := virtual[a.index]; !known {
			if virtual[a.index], err = b.isVirtual(a.index); err != nil {
				return nil, false, err
			}
		}
		if !virtual[a.index] {
			addrs = append(addrs, a.addr)
		}
	}
	after, err := b.ourIndex()
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs), before == after, err
}

// ourIndex returns the index of kube-ipvs0, or 0 if it does not exist or is foreign. The addresses of a foreign device count as the node's.
func (b *Backend) ourIndex() (int, error) {
	index, err := b.device()
	if errors.Is(err, errForeign) {
		return 0, nil
	}
	return index, err
}

// ofNode reports whether the address identifies the node: it is neither loopback nor link-local.
func (a address) ofNode() bool { return !a.addr.IsLoopback() && !a.addr.IsLinkLocalUnicast() }
