package netdev

import (
	"maps"
	"net/netip"
	"sync"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// belief is what the backend knows of the device from what it read and did. It tells the echo of our own changes, of which the
// kernel informs us too, from changes by others: an event that says what we believe already is no news, and news is believed. So
// a read may overlap with events: what it saw too early or too late has been, or will be, news. The error that remains is news
// of an address that we made and removed at once.
type belief struct {
	mu    sync.Mutex
	index int                     // of kube-ipvs0; 0 if it does not exist
	addrs map[netip.Addr]struct{} // nil: not known
}

// forget makes everything news until the next learn.
func (b *belief) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addrs = nil
}

func (b *belief) learn(index int, addrs map[netip.Addr]struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.index, b.addrs = index, maps.Clone(addrs) // the caller goes on with its own
}

func (b *belief) created(index int) { b.learn(index, map[netip.Addr]struct{}{}) }

func (b *belief) deleted() { b.learn(0, map[netip.Addr]struct{}{}) }

// expect takes over what operations on addresses are going to do. It is called before they are sent: their events come sooner
// than their answers.
func (b *belief) expect(ops []kernel.Op) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.addrs == nil {
		return
	}
	for _, op := range ops {
		addr := op.Object.(kernel.BoundAddress).Addr
		if op.Verb == kernel.Create {
			b.addrs[addr] = struct{}{}
		} else {
			delete(b.addrs, addr)
		}
	}
}

// news is what an event changes.
type news uint8

const (
	deviceNews news = 1 << iota // kube-ipvs0 or its addresses
	nodeNews                    // the node's own addresses
)

// linkNews judges that a link of this index and name appeared or changed (present), or went. When another link takes the name,
// the addresses of the old one become the node's.
func (b *belief) linkNews(index int, name string, present bool) news {
	if b.concernsDevice(index, name, present) {
		return deviceNews | nodeNews
	}
	return 0
}

func (b *belief) concernsDevice(index int, name string, present bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	isOurs, isNamed := index == b.index, name == kernel.Device
	if b.addrs == nil {
		return isOurs || isNamed
	}
	if !present {
		return isOurs
	}
	return isOurs != isNamed // renamed, or another link took the name
}

// addressNews judges that an address appeared (present) or went.
func (b *belief) addressNews(a address, present bool) news {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case a.index != b.index && a.ofNode():
		return nodeNews
	case a.index != b.index || a.kernelMade():
		return 0
	case b.addrs == nil:
		return deviceNews
	}
	_, believed := b.addrs[a.addr]
	if present {
		b.addrs[a.addr] = struct{}{}
	} else {
		delete(b.addrs, a.addr)
	}
	if believed == present {
		return 0
	}
	return deviceNews
}
