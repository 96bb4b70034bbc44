package kerneltest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// NodeAddresses implements Kernel.
func (f *Fake) NodeAddresses(ctx context.Context) ([]netip.Addr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts.NodeReads++
	if err := errors.Join(ctx.Err(), f.faults.node()); err != nil {
		return nil, fmt.Errorf("read the node's addresses: %w", err)
	}
	return slices.SortedFunc(maps.Keys(f.nodeAddrs), netip.Addr.Compare), nil
}

// SetNodeAddresses replaces the addresses of the node.
func (f *Fake) SetNodeAddresses(addrs ...netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.nodeAddrs)
	for _, a := range addrs {
		f.nodeAddrs[a] = struct{}{}
	}
}

// Network implements Kernel. It returns the value of SetNetwork.
func (f *Fake) Network(ctx context.Context) (kernel.Network, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := errors.Join(ctx.Err(), f.faults.network()); err != nil {
		return nil, fmt.Errorf("list the node's networks: %w", err)
	}
	return maps.Clone(f.network), nil
}

// Listeners implements Kernel. It returns the value of SetListeners.
func (f *Fake) Listeners(ctx context.Context) (kernel.Listeners, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts.SocketLists++
	if err := errors.Join(ctx.Err(), f.faults.network()); err != nil {
		return nil, fmt.Errorf("list the node's sockets: %w", err)
	}
	return maps.Clone(f.listeners), nil
}

// SetListeners replaces the sockets on which the node's processes listen.
func (f *Fake) SetListeners(keys ...kernel.ServerKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listeners = kernel.Listeners{}
	for _, key := range keys {
		f.listeners[key] = struct{}{}
	}
}

// SetNetwork replaces the gateways and the first and broadcast addresses that Network returns.
func (f *Fake) SetNetwork(network kernel.Network) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.network = maps.Clone(network)
}

// AddNodeAddress implements Admin.
func (f *Fake) AddNodeAddress(a netip.Addr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.nodeAddrs[a]; ok {
		return fmt.Errorf("address %s: %w", a, kernel.ErrExists)
	}
	f.nodeAddrs[a] = struct{}{}
	return nil
}

// DelNodeAddress implements Admin.
func (f *Fake) DelNodeAddress(a netip.Addr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.nodeAddrs[a]; !ok {
		return fmt.Errorf("address %s: %w", a, kernel.ErrNotFound)
	}
	delete(f.nodeAddrs, a)
	return nil
}

const nodeInterface = "node0"

// AddNodeAddress implements Admin. It skips duplicate address detection, so that the address is usable immediately.
func (Commands) AddNodeAddress(a netip.Addr) error {
	if command("ip", "link", "show", "dev", nodeInterface) != nil {
		if err := command("ip", "link", "add", nodeInterface, "type", "dummy"); err != nil {
			return err
		}
	}
	words := []string{"addr", "add", netip.PrefixFrom(a, a.BitLen()).String(), "dev", nodeInterface}
	if a.Is6() {
		words = append(words, "nodad")
	}
	return command("ip", words...)
}

// DelNodeAddress implements Admin.
func (Commands) DelNodeAddress(a netip.Addr) error {
	return command("ip", "addr", "del", netip.PrefixFrom(a, a.BitLen()).String(), "dev", nodeInterface)
}
