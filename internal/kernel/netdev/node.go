package netdev

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// NodeAddresses returns the addresses of the node's interfaces other than kube-ipvs0, sorted, each once. Loopback and link-local
// ones, which every node has, are left out, and so are IPv6 addresses while the kernel still looks for a duplicate on the link:
// they do not work yet. (Deprecated ones do.)
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
			return nil, fmt.Errorf("read the node's addresses: %s is made anew all the time", kernel.Device)
		}
	}
}

// nodeAddresses is one attempt. It is not stable if kube-ipvs0 became another interface meanwhile: virtual addresses would then
// pass for the node's.
func (b *Backend) nodeAddresses(ctx context.Context) (addrs []netip.Addr, stable bool, err error) {
	before, err := b.ourIndex()
	if err != nil {
		return nil, false, err
	}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		payloads, err := b.dumpAddresses(ctx, family)
		if err != nil {
			return nil, false, err
		}
		for _, payload := range payloads {
			a, err := parseAddress(payload)
			if err != nil {
				return nil, false, err
			}
			if a.index != before && a.ofNode() && !a.tentative {
				addrs = append(addrs, a.addr)
			}
		}
	}
	after, err := b.ourIndex()
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs), before == after, err
}

// ourIndex is that of kube-ipvs0; 0 if there is none, or one that cannot be ours: its addresses are the node's.
func (b *Backend) ourIndex() (int, error) {
	index, err := b.device()
	if errors.Is(err, errForeign) {
		return 0, nil
	}
	return index, err
}

// ofNode says whether the address is one of those that tell nodes apart.
func (a address) ofNode() bool { return !a.addr.IsLoopback() && !a.addr.IsLinkLocalUnicast() }
