package netdev

import (
	"maps"
	"net/netip"
	"sync"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// knownDevice records the state of the device and the gateways after the backend's own reads and writes. It distinguishes the events of the
// backend's own changes from those of other programs. An event that agrees with the recorded state is not a change. Any other event is a
// change and is recorded. A read may overlap with events, because anything that the read missed is reported as a change. An address that
// the backend adds and removes in quick succession may be reported, too.
type knownDevice struct {
	mu    sync.Mutex
	index int                           // the index of kube-ipvs0; 0 if it does not exist
	addrs map[netip.Addr]kernel.Binding // nil if unknown
	// writes counts this process's writes to the device and its addresses: a concurrent read may have missed one.
	writes uint64
	// devices contains the indexes of the links that were kube-ipvs0 when this process looked it up. These links remain the
	// agent's under any name.
	devices map[int]struct{}
	// unmarked is the index of a kube-ipvs0 without the agent's mark; 0 if there is none.
	unmarked int
	// gateways contains the gateways of this node's routes; nil if unknown. Gateways of deleted routes stay until the next read.
	gateways map[netip.Addr]struct{}
}

// forget makes every event count as a change until the next read.
func (k *knownDevice) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.writes++
	k.addrs = nil
}

// Call beginRead before reading from the kernel, and pass its result to read.
func (k *knownDevice) beginRead() (writes uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.writes
}

// read records a read, unless something was written since it began.
func (k *knownDevice) read(writes uint64, index int, addrs map[netip.Addr]kernel.Binding) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.writes != writes {
		return
	}
	if k.index = index; k.addrs == nil || !maps.Equal(k.addrs, addrs) {
		k.addrs = maps.Clone(addrs) // the caller may change its map
	}
}

func (k *knownDevice) found(index int, marked bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.devices == nil {
		k.devices = map[int]struct{}{}
	}
	k.devices[index] = struct{}{}
	if !marked {
		k.unmarked = index
	} else if k.unmarked == index {
		k.unmarked = 0
	}
}

// had reports whether the link with this index was kube-ipvs0.
func (k *knownDevice) had(index int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, had := k.devices[index]
	return had
}

func (k *knownDevice) withoutMark() (index int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.unmarked
}

// settled records that the link with this index needs no mark: it has one, or it was deleted.
func (k *knownDevice) settled(index int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.unmarked == index {
		k.unmarked = 0
	}
}

func (k *knownDevice) created(index int) {
	k.found(index, false)
	k.wrote(index)
}

func (k *knownDevice) deleted() { k.wrote(0) }

func (k *knownDevice) wrote(index int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.writes++
	k.index, k.addrs = index, map[netip.Addr]kernel.Binding{}
}

// expect records the effects of operations on addresses. It is called before they are sent, because their events arrive before their
// answers.
func (k *knownDevice) expect(ops []kernel.Op) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.writes++
	if k.addrs == nil {
		return
	}
	for _, op := range ops {
		op.Object.(kernel.BoundAddress).Advance(k.addrs, op.Verb)
	}
}

type changes uint8

const (
	deviceChanged changes = 1 << iota // kube-ipvs0 or its addresses
	nodeChanged                       // the node's own addresses or networks
)

// link handles a link event: the link appeared or changed (present), or was deleted. If another link takes the name kube-ipvs0, its
// addresses are no longer the node's.
func (k *knownDevice) link(index int, name string, present bool) changes {
	if !present {
		k.gone(index)
	}
	if k.concernsDevice(index, name, present) {
		return deviceChanged | nodeChanged
	}
	return 0
}

// gone forgets a deleted link, because a new link may reuse its index.
func (k *knownDevice) gone(index int) {
	k.settled(index)
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.devices, index)
}

func (k *knownDevice) concernsDevice(index int, name string, present bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	isOurs, isNamed := index == k.index, name == kernel.Device
	if k.addrs == nil {
		return isOurs || isNamed
	}
	if !present {
		return isOurs
	}
	return isOurs != isNamed // renamed, or another link took the name
}

func (k *knownDevice) address(a address, present bool) changes {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case a.index != k.index && a.ofNode():
		return nodeChanged
	case a.index != k.index || a.kernelMade() || a.addr == anchor && present:
		return 0
	case a.addr == anchor: // the kernel may have removed all routes with it, without events
		k.addrs = nil
		return deviceChanged
	}
	return k.bound(a.addr, kernel.OnDevice, present)
}

// localRoute handles the event of a route with the agent's protocol number.
func (k *knownDevice) localRoute(r listedRoute, present bool) changes {
	k.mu.Lock()
	defer k.mu.Unlock()
	if r.index != k.index {
		return 0
	}
	return k.bound(r.to, kernel.Routed, present)
}

func (k *knownDevice) bound(addr netip.Addr, binding kernel.Binding, present bool) changes {
	change := kernel.Unbind
	if present {
		change = kernel.Bind
	}
	if k.addrs != nil && !change(k.addrs, addr, binding) {
		return 0
	}
	return deviceChanged
}

func (k *knownDevice) readGateways(gateways map[netip.Addr]struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.gateways = gateways
}

// route handles the event of a new route with these gateways. Routes change with every pod and, on a router,
// constantly, so only an unknown gateway counts as a change.
func (k *knownDevice) route(gateways []netip.Addr) (changed changes) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, gateway := range gateways {
		if _, known := k.gateways[gateway]; known {
			continue
		}
		if changed = nodeChanged; k.gateways != nil {
			k.gateways[gateway] = struct{}{}
		}
	}
	return changed
}
