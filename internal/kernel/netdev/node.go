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
	addrs, _, err := b.nodeAddresses(ctx)
	return addrs, err
}

// Node reads the node's addresses and networks.
func (b *Backend) Node(ctx context.Context) (*kernel.Node, error) {
	addrs, device, err := b.nodeAddresses(ctx)
	if err != nil {
		return nil, err
	}
	network, err := b.network(ctx, device)
	if err != nil {
		return nil, err
	}
	return &kernel.Node{Addresses: addrs, Network: network}, nil
}

// nodeAddresses also returns the index of kube-ipvs0. It tries again if kube-ipvs0 was recreated in the meantime, because virtual addresses
// could then count as the node's.
func (b *Backend) nodeAddresses(ctx context.Context) (addrs []netip.Addr, device int, err error) {
	device, err = b.ourIndex()
	for attempt := 1; err == nil; attempt++ {
		before := device
		if addrs, err = b.addressesBeside(ctx, before); err != nil {
			break
		}
		if device, err = b.ourIndex(); err == nil && device == before {
			return addrs, device, nil
		}
		if attempt == dumpAttempts && err == nil {
			err = fmt.Errorf("%s keeps being recreated", kernel.Device)
		}
	}
	return nil, 0, fmt.Errorf("read the node's addresses: %w", err)
}

func (b *Backend) addressesBeside(ctx context.Context, device int) (addrs []netip.Addr, err error) {
	found, err := b.addressesExcept(ctx, device, func(a address) bool { return a.ofNode() && !a.tentative })
	if err != nil {
		return nil, err
	}
	virtual := map[int]bool{}
	for _, a := range found {
		if _, known := virtual[a.index]; !known {
			if virtual[a.index], err = b.isVirtual(a.index); err != nil {
				return nil, err
			}
		}
		if !virtual[a.index] {
			addrs = append(addrs, a.addr)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs), nil
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
