package diff

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Failures says which operations of a plan must not be tried because one they build on has failed (I8). Everything else in
// the plan goes on.
type Failures struct {
	want *want.State
	// have follows the operations that succeed.
	have    *kernel.State
	missing map[mark]error
	// heirs are the wanted virtual servers at the place of each for all ports; nil until somebody asks.
	heirs map[kernel.ServerKey][]kernel.ServerKey
}

// NewFailures starts a pass over everything, in which nothing has failed yet. The caller advances have.
func NewFailures(w *want.State, have *kernel.State) *Failures {
	return &Failures{want: w, have: have, missing: map[mark]error{}}
}

// Next starts a pass over touched objects. Such a pass does not look at what all Services build on, so where that failed it
// is still missing; single objects get another chance.
func (f *Failures) Next() *Failures {
	next := NewFailures(f.want, f.have)
	for m, err := range f.missing {
		if m.fact <= lastCommonFact {
			next.missing[m] = err
		}
	}
	return next
}

// Add notes that an operation failed or was skipped.
func (f *Failures) Add(op kernel.Op, err error) {
	if !errors.As(err, &skippedError{}) {
		err = skippedError{err}
	}
	for _, m := range f.gives(op) {
		f.missing[m] = err
	}
}

// skippedError is why an operation is not tried.
type skippedError struct{ cause error }

func (e skippedError) Error() string { return "skipped: " + e.cause.Error() }
func (e skippedError) Unwrap() error { return e.cause }

// errUnserved is why an address is not bound, or its last virtual server not deleted. One that others serve is bound though
// some of its servers could not be made: their ports stay closed.
var errUnserved = errors.New("no virtual server that is wanted stands at the address")

// Blocks returns why an operation must be skipped, or nil.
func (f *Failures) Blocks(op kernel.Op) error {
	for _, m := range f.needs(op) {
		if err := f.missing[m]; err != nil {
			return err
		}
	}
	switch o := op.Object.(type) {
	case kernel.BoundAddress:
		if op.Verb == kernel.Create && !f.served(o.Addr) {
			return skippedError{errUnserved}
		}
	case kernel.Server:
		if addr := o.Key.Addr.Addr(); op.Verb == kernel.Delete && f.want.HasAddress(addr) && !f.served(addr) {
			return skippedError{errUnserved}
		}
	}
	return nil
}

// served says whether a wanted virtual server stands at the address.
func (f *Failures) served(addr netip.Addr) bool {
	return slices.ContainsFunc(f.want.ServersAt(addr), func(key kernel.ServerKey) bool {
		_, stands := f.have.Servers[key]
		return stands
	})
}

// mark is a fact that one operation establishes and others build on.
type mark struct {
	fact     fact
	family   inet.Family
	set      string
	addr     netip.AddrPort
	protocol inet.Protocol
}

type fact uint8

const (
	deviceReady     fact = iota + 1
	setReady             // the set exists with the right parameters
	setsReady            // all sets of a family do
	rulesReady           // the chains of a family are in place
	owned                // the ledger has the server's entry
	ledgerComplete       // the ledger of a family has every entry
	serverReady          // the virtual server stands
	addressListed        // the address is in the set of virtual addresses
	addressServed        // a virtual server stands at the address
	addressGone          // the address is not on kube-ipvs0
	guarded              // the port is in the sets of what stands before it
	guardGone            // nothing stands before the port any more
	destinationsSet      // the destinations are those that are wanted
	portClosed           // the port is not in a set that lets packets in
	serverGone           // the virtual server does not stand
	limitsRecorded       // it is known that the destinations may have connection limits
)

// The facts up to here are those that all Services build on.
const lastCommonFact = rulesReady

// gives lists what is missing when the operation fails.
func (f *Failures) gives(op kernel.Op) []mark {
	switch o := op.Object.(type) {
	case kernel.DummyDevice:
		return []mark{{fact: deviceReady}}
	case kernel.Set:
		if op.Verb != kernel.Delete {
			return []mark{{fact: setReady, set: o.Name}, {fact: setsReady, family: o.Family}}
		}
	case kernel.Ruleset:
		return []mark{{fact: rulesReady, family: o.Family}}
	case kernel.Member:
		return f.memberGives(op.Verb, o)
	case kernel.Server:
		if op.Verb == kernel.Delete {
			return []mark{server(serverGone, o.Key)}
		}
		if op.Verb == kernel.Create {
			return []mark{server(serverReady, o.Key)}
		}
	case kernel.ServerDestination:
		return []mark{server(destinationsSet, o.Server)}
	case kernel.BoundAddress:
		if op.Verb == kernel.Delete {
			return []mark{address(addressGone, o.Addr)}
		}
	}
	return nil
}

func (f *Failures) memberGives(verb kernel.Verb, m kernel.Member) []mark {
	set, _ := f.want.Set(m.Set)
	switch {
	case verb == kernel.Create && f.isLedger(m.Set):
		return []mark{server(owned, keyOf(m.Element)), {fact: ledgerComplete, family: set.Family}}
	case verb == kernel.Create && f.isLimited(m.Set):
		return []mark{server(limitsRecorded, keyOf(m.Element))}
	case verb == kernel.Create && set.VIPs:
		return []mark{address(addressListed, m.Element.Addr)}
	case verb == kernel.Create && set.Timing == want.Guard:
		key := keyOf(m.Element)
		return []mark{server(guarded, key), server(guarded, f.want.Match(key))}
	case verb == kernel.Delete && set.Timing == want.Guard:
		return []mark{server(guardGone, keyOf(m.Element))}
	case verb == kernel.Delete && set.Timing == want.Late && !set.VIPs:
		key := keyOf(m.Element)
		return []mark{server(portClosed, key), server(portClosed, key.AllPorts())}
	}
	return nil
}

// needs lists what the operation builds on.
func (f *Failures) needs(op kernel.Op) []mark {
	switch o := op.Object.(type) {
	case kernel.Ruleset:
		return []mark{{fact: setsReady, family: o.Family}}
	case kernel.Member:
		return f.memberNeeds(op.Verb, o)
	case kernel.Server:
		switch op.Verb {
		case kernel.Create:
			return append([]mark{{fact: rulesReady, family: o.Key.Family()}, server(owned, o.Key)}, isGuarded(o.Key)...)
		case kernel.Update: // one that is being taken over
			return []mark{server(owned, o.Key)}
		case kernel.Delete:
			return append(f.replaced(o.Key), address(addressGone, o.Key.Addr.Addr()), server(portClosed, o.Key))
		}
	case kernel.ServerDestination:
		if op.Verb != kernel.Delete {
			return append(isGuarded(o.Server), server(serverReady, o.Server), server(owned, o.Server), server(limitsRecorded, o.Server))
		}
	case kernel.BoundAddress:
		if op.Verb == kernel.Create {
			family := inet.FamilyOf(o.Addr)
			return []mark{{fact: deviceReady}, {fact: rulesReady, family: family}, address(addressListed, o.Addr)}
		}
	}
	return nil
}

func (f *Failures) memberNeeds(verb kernel.Verb, m kernel.Member) []mark {
	set, _ := f.want.Set(m.Set)
	switch {
	case verb == kernel.Create && set.Timing == want.Late && !set.VIPs:
		key := f.want.Match(keyOf(m.Element))
		return append(isGuarded(key), mark{fact: setReady, set: m.Set}, server(serverReady, key), server(owned, key))
	case verb == kernel.Create && isSeal(f.want, m):
		return []mark{{fact: setReady, set: m.Set}, {fact: ledgerComplete, family: set.Family}}
	case verb == kernel.Create:
		return []mark{{fact: setReady, set: m.Set}}
	case verb == kernel.Delete && set.VIPs:
		marks := []mark{address(addressGone, m.Element.Addr)}
		for _, wide := range behind(m.Element) { // at an address of the node's own it would take every port of the machine
			marks = append(marks, server(serverGone, wide))
		}
		return marks
	case verb == kernel.Delete && f.isLedger(m.Set):
		return []mark{server(serverGone, keyOf(m.Element))}
	case verb == kernel.Delete && f.isLimited(m.Set):
		// Forgotten while a limit stands, it would stand for ever.
		return []mark{server(destinationsSet, keyOf(m.Element)), server(serverGone, keyOf(m.Element))}
	case verb == kernel.Delete && set.Timing == want.Guard:
		// A virtual server that could not be deleted goes on taking packets: nobody passes who could not before. Nor does anybody whom
		// another guard, which could not be written, was to keep out or to masquerade.
		var marks []mark
		for _, key := range behind(m.Element) {
			marks = append(marks, server(guarded, key), server(destinationsSet, key), server(serverGone, key))
		}
		return marks
	case verb == kernel.Delete && set.Timing == want.Early:
		return []mark{server(guardGone, keyOf(m.Element))}
	}
	return nil
}

// isGuarded lists what stands before a virtual server: before that of all ports, a guard of the whole address, too.
func isGuarded(key kernel.ServerKey) []mark {
	marks := []mark{server(guarded, key)}
	if key == key.AllPorts() {
		marks = append(marks, address(guarded, key.Addr.Addr()))
	}
	return marks
}

// behind lists the virtual servers that packets may meet which pass a guard: at its port, or at all ports of its address.
func behind(e kernel.Element) []kernel.ServerKey {
	if key := keyOf(e); e.Protocol != 0 {
		return []kernel.ServerKey{key, key.AllPorts()}
	}
	var wide []kernel.ServerKey
	for _, p := range []inet.Protocol{inet.TCP, inet.UDP, inet.SCTP} {
		wide = append(wide, kernel.ServerKey{Addr: netip.AddrPortFrom(e.Addr, 0), Protocol: p})
	}
	return wide
}

// replaced lists what must be in place before a virtual server goes whose ports another one takes over: that of all ports where one
// of a single port goes, and the other way round.
func (f *Failures) replaced(key kernel.ServerKey) []mark {
	var marks []mark
	add := func(heir kernel.ServerKey) {
		marks = append(marks, server(serverReady, heir), server(destinationsSet, heir))
	}
	if heir := f.want.Match(key); heir != key {
		add(heir)
	}
	if key == key.AllPorts() {
		for _, heir := range f.heirsOf(key) { // those at an address that has become the node's own, too
			add(heir)
		}
	}
	return marks
}

// heirsOf sorts the wanted virtual servers once for a pass, however many for all ports go in it.
func (f *Failures) heirsOf(wide kernel.ServerKey) []kernel.ServerKey {
	if f.heirs == nil {
		f.heirs = map[kernel.ServerKey][]kernel.ServerKey{}
		for key := range f.want.Servers {
			f.heirs[key.AllPorts()] = append(f.heirs[key.AllPorts()], key)
		}
	}
	return f.heirs[wide]
}

func (f *Failures) isLedger(set string) bool { return isOneOf(f.want.Base.Ledger, set) }

func (f *Failures) isLimited(set string) bool { return isOneOf(f.want.Base.Limited, set) }

func isOneOf(names map[inet.Family]string, set string) bool {
	for _, name := range names {
		if name == set {
			return true
		}
	}
	return false
}

func server(f fact, key kernel.ServerKey) mark {
	return mark{fact: f, addr: key.Addr, protocol: key.Protocol}
}

func address(f fact, a netip.Addr) mark { return mark{fact: f, addr: netip.AddrPortFrom(a, 0)} }

// keyOf is the virtual server that an entry with address, protocol and port stands for.
func keyOf(e kernel.Element) kernel.ServerKey {
	return kernel.ServerKey{Addr: netip.AddrPortFrom(e.Addr, e.Port), Protocol: e.Protocol}
}
