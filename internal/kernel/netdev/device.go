package netdev

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// The types of the device. The agent uses the fallback if the kernel lacks the type dummy. A bridge without ports belongs to the agent only
// if it has the mark.
const (
	deviceType   = "dummy"
	fallbackType = "bridge"
)

// deviceAlias marks a kube-ipvs0 that the agent created or took over. It survives a rename of the device, whose addresses would otherwise
// count as the node's own.
const deviceAlias = "kube-ipvs"

var errForeign = errors.New("an interface with this name exists and is not a dummy")

// device returns the index of kube-ipvs0; 0 if it does not exist.
func (b *Backend) device() (index int, err error) {
	link, err := b.link()
	if link == nil {
		return 0, err
	}
	return link.Attrs().Index, nil
}

// link looks up kube-ipvs0; nil if it does not exist. An interface of another type with that name is an error, because its addresses are
// foreign.
func (b *Backend) link() (netlink.Link, error) {
	link, err := b.links.LinkByName(kernel.Device)
	if notFound := (netlink.LinkNotFoundError{}); errors.As(err, &notFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", kernel.Device, err)
	}
	if link.Type() != deviceType && !marked(link) {
		return nil, fmt.Errorf("use %s: %w (type %s); remove it with `ip link del %s`",
			kernel.Device, errForeign, link.Type(), kernel.Device)
	}
	b.known.found(link.Attrs().Index, marked(link))
	return link, nil
}

// If the MTU of a device is below the IPv6 minimum, the kernel removes all its IPv6 addresses and accepts no new ones. No packet leaves
// through kube-ipvs0, so its MTU has no other effect.
const (
	minMTU   = 1280
	usualMTU = 1500
)

// admitIPv6 restores the MTU if another program has set it so low that the kernel would accept no IPv6 address. If
// that fails, adding an address returns the error.
func (b *Backend) admitIPv6(link netlink.Link, ops []kernel.Op) {
	addsIPv6 := slices.ContainsFunc(ops, func(op kernel.Op) bool {
		return op.Verb == kernel.Create && op.Object.(kernel.BoundAddress).Addr.Is6()
	})
	if addsIPv6 && link.Attrs().MTU < minMTU {
		_ = b.links.LinkSetMTU(link, usualMTU)
	}
}

// isVirtual reports whether an interface with this index is kube-ipvs0, possibly renamed.
func (b *Backend) isVirtual(index int) (bool, error) {
	link, err := b.links.LinkByIndex(index)
	if notFound := (netlink.LinkNotFoundError{}); errors.As(err, &notFound) {
		return true, nil // it was deleted with its addresses
	}
	if err != nil {
		return false, fmt.Errorf("look up interface %d: %w", index, err)
	}
	return b.isOurs(link), nil
}

// isOurs reports whether a link is kube-ipvs0 under any name: it has the mark, or it had the name when this process looked it up.
func (b *Backend) isOurs(link netlink.Link) bool {
	return marked(link) || isPossible(link) && b.known.had(link.Attrs().Index)
}

func marked(link netlink.Link) bool { return isPossible(link) && link.Attrs().Alias == deviceAlias }

func isPossible(link netlink.Link) bool {
	return link.Type() == deviceType || link.Type() == fallbackType
}

// TakeOver marks a kube-ipvs0 that another program created, such as kube-proxy. It sends nothing if the last lookup found the mark.
// Otherwise, it uses the index from that lookup, so that the device gets the mark even if it has been renamed since then.
func (b *Backend) TakeOver() {
	if index := b.known.withoutMark(); index != 0 {
		b.mark(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: index}})
	}
}

// mark ignores errors, because everything works without the mark. The next TakeOver retries.
func (b *Backend) mark(link netlink.Link) {
	if err := b.links.LinkSetAlias(link, deviceAlias); err == nil || errors.Is(err, unix.ENODEV) {
		b.known.settled(link.Attrs().Index)
	}
}

// renamed returns a renamed kube-ipvs0; nil if there is none.
func (b *Backend) renamed() (netlink.Link, error) {
	links, err := b.links.LinkList()
	if err != nil {
		return nil, fmt.Errorf("look for %s under another name: %w", kernel.Device, err)
	}
	for _, link := range links {
		if b.isOurs(link) && link.Attrs().Name != kernel.Device {
			return link, nil
		}
	}
	return nil, nil
}

// giveNameBack marks the device first, because events under its new name would otherwise look like another program's changes.
func (b *Backend) giveNameBack(link netlink.Link) error {
	if !marked(link) {
		b.mark(link)
	}
	if err := b.links.LinkSetName(link, kernel.Device); err != nil {
		return fmt.Errorf("rename %s to %s: %w", link.Attrs().Name, kernel.Device, err)
	}
	b.known.forget() // the addresses may have changed
	return nil
}

// HasDevice reports whether kube-ipvs0 exists.
func (b *Backend) HasDevice() (bool, error) {
	index, err := b.device()
	return index != 0, err
}

// createDevice creates kube-ipvs0. If the device was renamed, createDevice restores the name instead, so the
// addresses stay.
func (b *Backend) createDevice() error {
	renamed, err := b.renamed()
	if err != nil {
		return err
	}
	if renamed != nil {
		return b.giveNameBack(renamed)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = kernel.Device
	var link netlink.Link = &netlink.Dummy{LinkAttrs: attrs}
	err = b.links.LinkAdd(link)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return b.createBridge(attrs, err)
	}
	if errors.Is(err, unix.EEXIST) {
		if _, err := b.device(); err != nil {
			return err
		}
		return fmt.Errorf("create %s: %w", kernel.Device, kernel.ErrExists)
	}
	if err != nil {
		return explainDevice(err)
	}
	b.known.created(link.Attrs().Index)
	b.mark(link)
	return nil
}

// createBridge creates a bridge, for kernels without the type dummy. Without the mark, the bridge would look foreign.
func (b *Backend) createBridge(attrs netlink.LinkAttrs, noDummy error) error {
	link := &netlink.Bridge{LinkAttrs: attrs}
	err := b.links.LinkAdd(link)
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("create %s: %w", kernel.Device, kernel.ErrExists)
	}
	if err != nil {
		return explainDevice(noDummy)
	}
	if err := b.links.LinkSetAlias(link, deviceAlias); err != nil {
		return errors.Join(fmt.Errorf("create %s: mark the bridge: %w", kernel.Device, err), b.links.LinkDel(link))
	}
	b.known.created(link.Attrs().Index)
	b.known.settled(link.Attrs().Index)
	return nil
}

func explainDevice(err error) error {
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("create %s: kernel module dummy is missing (run `modprobe dummy` on the host to see why): %w: %w",
			kernel.Device, kernel.ErrUnavailable, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("create %s: capability NET_ADMIN is missing: %w", kernel.Device, err)
	}
	return fmt.Errorf("create %s: %w", kernel.Device, err)
}

func (b *Backend) deleteDevice() error {
	index, err := b.device()
	if err != nil || index == 0 {
		return err
	}
	b.known.deleted()
	link := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: index, Name: kernel.Device}}
	if err := b.links.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		b.known.forget()
		return fmt.Errorf("delete %s: %w", kernel.Device, err)
	}
	return nil
}
