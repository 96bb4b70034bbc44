package netdev

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// dumpAttempts is the maximum number of attempts for a dump. A dump is repeated if an object changed during it.
const dumpAttempts = 10

// ReadDevice reports whether kube-ipvs0 exists and which addresses it makes local, without IPv6 link-local addresses added by the kernel.
func (b *Backend) ReadDevice(ctx context.Context) (exists bool, addrs map[netip.Addr]kernel.Binding, err error) {
	writes := b.known.beginRead()
	index, err := b.device()
	if err != nil && !errors.Is(err, errForeign) { // creating the device reports the error
		return false, nil, err
	}
	addrs = map[netip.Addr]kernel.Binding{}
	if index != 0 {
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			if err := b.readAddresses(ctx, family, index, addrs); err != nil {
				return false, nil, fmt.Errorf("read addresses of %s: %w", kernel.Device, err)
			}
		}
		if err := b.readLocalRoutes(ctx, index, addrs); err != nil {
			return false, nil, fmt.Errorf("read local routes to %s: %w", kernel.Device, err)
		}
	}
	b.known.read(writes, index, addrs)
	return index != 0, addrs, nil
}

// readAddresses adds the device's addresses of a family. The kernel sends the addresses of all interfaces, but nearly
// all of them are on this device.
func (b *Backend) readAddresses(ctx context.Context, family uint8, index int, into map[netip.Addr]kernel.Binding) error {
	return uninterrupted(func() error {
		maps.DeleteFunc(into, func(addr netip.Addr, _ kernel.Binding) bool { return addr.Is4() == (family == unix.AF_INET) }) // an interrupted attempt's
		return b.addrs.Walk(ctx, addressesRequest(family), func(payload []byte) error {
			a, err := parseAddress(payload)
			if err == nil && a.index == index && !a.kernelMade() && a.addr != anchor {
				into[a.addr] = kernel.OnDevice
			}
			return err
		})
	})
}

// addressesExcept returns the addresses that keep selects, of all interfaces except one: kube-ipvs0 may have thousands.
func (b *Backend) addressesExcept(ctx context.Context, index int, keep func(address) bool) (found []address, err error) {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		before := len(found)
		err := uninterrupted(func() error {
			found = found[:before]
			return b.addrs.Walk(ctx, addressesRequest(family), func(payload []byte) error {
				if len(payload) >= unix.SizeofIfAddrmsg && interfaceOf(payload) == index {
					return nil
				}
				a, err := parseAddress(payload)
				if err == nil && keep(a) {
					found = append(found, a)
				}
				return err
			})
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

func addressesRequest(family uint8) nlbatch.Request {
	return nlbatch.Request{Type: unix.RTM_GETADDR, Payload: addressHeader(family, 0, 0, 0)}
}

// applyAddresses applies operations on addresses. Creating an existing address succeeds, because the result is the same. If the binding of an
// address changes, the old one is removed after all new ones exist, so that the address stays local.
func (b *Backend) applyAddresses(ctx context.Context, ops []kernel.Op, errs []error) {
	link, err := b.link()
	if link == nil {
		withoutDevice(ops, errs, err)
		return
	}
	b.admitIPv6(link, ops)
	b.known.expect(ops)
	index := link.Attrs().Index
	var notAnchored error
	if slices.ContainsFunc(ops, addsRoute) {
		notAnchored = b.addAnchor(ctx, index)
	}
	created := batch{verb: kernel.Create, index: index, ops: ops, errs: errs}
	for i, op := range ops {
		if addsRoute(op) && notAnchored != nil {
			errs[i] = notAnchored
		} else if op.Verb == kernel.Create {
			created.add(i, op.Object.(kernel.BoundAddress).Binding)
		}
	}
	created.send(ctx, b.addrs)
	removed := batch{verb: kernel.Delete, index: index, ops: ops, errs: errs}
	for i, op := range ops {
		for _, binding := range op.Object.(kernel.BoundAddress).Removals(op.Verb) {
			if errs[i] == nil {
				removed.add(i, binding)
			}
		}
	}
	removed.send(ctx, b.addrs)
	if errors.Join(errs...) != nil {
		b.known.forget()
	}
}

// withoutDevice sets the results of address operations if the device does not exist (cause is nil) or cannot be used.
func withoutDevice(ops []kernel.Op, errs []error, cause error) {
	if cause == nil {
		cause = fmt.Errorf("%s: %w", kernel.Device, kernel.ErrNotFound)
	}
	for i, op := range ops {
		if op.Verb == kernel.Delete && errors.Is(cause, kernel.ErrNotFound) {
			continue
		}
		errs[i] = fmt.Errorf("%s: %w", op, cause)
	}
}

// batch contains requests that all create or all delete addresses or routes.
type batch struct {
	verb  kernel.Verb
	index int // of the device
	ops   []kernel.Op
	errs  []error
	reqs  []nlbatch.Request
	of    []int // the operation of each request
}

func (b *batch) add(i int, binding kernel.Binding) {
	addr := b.ops[i].Object.(kernel.BoundAddress).Addr
	req := addressRequest
	if binding == kernel.Routed {
		req = localRouteRequest
	}
	b.reqs, b.of = append(b.reqs, req(b.verb, addr, b.index)), append(b.of, i)
}

func (b *batch) send(ctx context.Context, conn *nlbatch.Conn) {
	for n, err := range conn.Do(ctx, b.reqs) {
		i := b.of[n]
		b.errs[i] = errors.Join(b.errs[i], explainAddress(b.ops[i], b.verb, err))
	}
}

func addressRequest(verb kernel.Verb, addr netip.Addr, index int) nlbatch.Request {
	family, flags := uint8(unix.AF_INET), uint8(0)
	if inet.FamilyOf(addr) == inet.IPv6 {
		// An address on a dummy device cannot have duplicates. Without duplicate address detection, it is usable immediately.
		family, flags = unix.AF_INET6, unix.IFA_F_NODAD
	}
	payload := addressHeader(family, uint8(addr.BitLen()), flags, index)
	payload = nlbatch.AppendAttr(payload, unix.IFA_LOCAL, addr.AsSlice())
	if verb == kernel.Create {
		payload = nlbatch.AppendAttr(payload, unix.IFA_ADDRESS, addr.AsSlice())
		if family == unix.AF_INET6 {
			payload = nlbatch.AppendAttr(payload, unix.IFA_CACHEINFO, neverASource())
		}
		return nlbatch.Request{Type: unix.RTM_NEWADDR, Flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, Payload: payload}
	}
	// IFA_ADDRESS would limit the deletion to an address with this prefix length, but another program may have added an IPv4 address as a /24.
	return nlbatch.Request{Type: unix.RTM_DELADDR, Payload: payload}
}

// neverASource encodes a struct ifa_cacheinfo: valid forever, preferred never. Otherwise, if a virtual address and a pod's address have a
// long common prefix, the kernel would use the virtual address as the source of the node's own packets to the pod, and the replies would
// not reach the node. The kernel still uses a virtual address as the source of packets to that address.
func neverASource() []byte {
	const preferred, valid = 0, 0xffffffff // seconds; all bits set means forever
	b := binary.NativeEndian.AppendUint32(nil, preferred)
	b = binary.NativeEndian.AppendUint32(b, valid)
	return append(b, make([]byte, 8)...) // two time stamps that only the kernel writes
}

const addressScope = 3 // the offset of the scope in an address header

func addressHeader(family, prefix, flags uint8, index int) []byte {
	b := []byte{family, prefix, flags, unix.RT_SCOPE_UNIVERSE}
	return binary.NativeEndian.AppendUint32(b, uint32(index))
}

func explainAddress(op kernel.Op, verb kernel.Verb, err error) error {
	create := verb == kernel.Create
	switch {
	case err == nil,
		create && errors.Is(err, unix.EEXIST),
		!create && (errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ESRCH)):
		return nil
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("%s: %w: %w", op, kernel.ErrNotFound, err)
	case errors.Is(err, unix.EACCES) && inet.FamilyOf(op.Object.(kernel.BoundAddress).Addr) == inet.IPv6:
		return fmt.Errorf("%s: IPv6 is disabled on the device (sysctl net.ipv6.conf.%s.disable_ipv6): %w", op, kernel.Device, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%s: capability NET_ADMIN is missing: %w", op, err)
	}
	return fmt.Errorf("%s: %w", op, err)
}

type address struct {
	index  int
	addr   netip.Addr
	prefix uint8
	// broadcast is the broadcast address that belongs to addr, if there is one.
	broadcast netip.Addr
	// tentative is true if duplicate address detection has not finished, or has found a duplicate.
	tentative bool
}

// kernelMade reports whether the kernel derived the address from the interface. The agent's addresses have the full prefix length.
func (a address) kernelMade() bool {
	return a.addr.Is6() && a.addr.IsLinkLocalUnicast() && a.prefix == 64
}

func parseAddress(b []byte) (address, error) {
	if len(b) < unix.SizeofIfAddrmsg {
		return address{}, fmt.Errorf("read address: message of %d bytes", len(b))
	}
	a := address{prefix: b[1], index: interfaceOf(b), tentative: isTentative(uint32(b[2]))}
	// IFA_LOCAL is the interface's own address; IFA_ADDRESS is the peer's, if there is one.
	var local, other []byte
	err := nlbatch.EachAttr(b[unix.SizeofIfAddrmsg:], func(typ uint16, v []byte) error {
		switch typ {
		case unix.IFA_LOCAL:
			local = v
		case unix.IFA_ADDRESS:
			other = v
		case unix.IFA_BROADCAST:
			a.broadcast, _ = netip.AddrFromSlice(v)
		case unix.IFA_FLAGS: // all flags; the header has room for eight
			flags, err := nlbatch.Uint32(v)
			a.tentative = isTentative(flags)
			return err
		}
		return nil
	})
	if err != nil {
		return address{}, err
	}
	if local == nil {
		local = other
	}
	addr, ok := netip.AddrFromSlice(local)
	if !ok {
		return address{}, fmt.Errorf("read address: invalid length of %d bytes", len(local))
	}
	a.addr = addr
	return a, nil
}

func interfaceOf(b []byte) int { return int(binary.NativeEndian.Uint32(b[4:])) }

// isTentative ignores the tentative flag of an optimistic address, which is already usable.
func isTentative(flags uint32) bool {
	return flags&unix.IFA_F_TENTATIVE != 0 && flags&(unix.IFA_F_OPTIMISTIC|unix.IFA_F_DADFAILED) != unix.IFA_F_OPTIMISTIC
}
