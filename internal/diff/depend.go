package diff

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Failures decides which operations of a plan to skip because they depend on a failed operation (I8). All other operations are tried.
type Failures struct {
	want *Target
	// have is the kernel state, which the caller updates after each successful operation.
	have    *kernel.State
	missing map[condition]error
	// perPort groups the wanted virtual servers by the key of their all-ports server; nil until needed.
	perPort map[kernel.ServerKey][]kernel.ServerKey
}

// NewFailures returns the Failures for a full sync. The caller updates have after each successful operation.
func NewFailures(w *Target, have *kernel.State) *Failures {
	return &Failures{want: w, have: have, missing: map[condition]error{}}
}

// Next returns the Failures for an incremental sync. It keeps failures of the base that all Services depend on, because an incremental
// sync does not compare the base. It drops all other failures.
func (f *Failures) Next() *Failures {
	next := NewFailures(f.want, f.have)
	for c, err := range f.missing {
		if c.fact <= lastCommonFact {
			next.missing[c] = err
		}
	}
	return next
}

// Add records that an operation failed or was skipped.
func (f *Failures) Add(op kernel.Op, err error) {
	if !errors.As(err, &skippedError{}) {
		err = skippedError{err}
	}
	for _, c := range f.provides(op) {
		if c.fact == ledgerComplete && f.needsNoEntry(op, err) {
			continue
		}
		f.missing[c] = err
	}
}

// needsNoEntry reports whether a ledger is complete even without a refused entry, because the entry's virtual server does not exist and
// will not be created.
func (f *Failures) needsNoEntry(op kernel.Op, err error) bool {
	m, ok := op.Object.(kernel.Member)
	if !ok || !kernel.Refused(op, err) {
		return false
	}
	_, exists := f.have.Servers[keyOf(m.Element)]
	return !exists
}

type skippedError struct{ cause error }

func (e skippedError) Error() string { return "skipped: " + e.cause.Error() }
func (e skippedError) Unwrap() error { return e.cause }

// errUnserved is the reason why an address is not bound, or why its last virtual server is not deleted. An address with at least one
// wanted virtual server is bound even if others could not be created. Their ports stay closed.
var errUnserved = errors.New("none of the address's wanted virtual servers exists")

var errUnreplaced = errors.New("a virtual server that replaces this one does not exist")

// Blocks returns the reason why an operation must be skipped, or nil if it can run.
func (f *Failures) Blocks(op kernel.Op) error {
	if len(f.missing) > 0 {
		for _, c := range f.needs(op) {
			if err := f.missing[c]; err != nil {
				return err
			}
		}
	}
	switch o := op.Object.(type) {
	case kernel.BoundAddress:
		if op.Verb == kernel.Create && !o.Moved && !f.served(o.Addr) { // packets already arrive at a moved address
			return skippedError{errUnserved}
		}
	case kernel.Server:
		if op.Verb == kernel.Delete {
			return f.blocksRemoval(o.Key)
		}
	}
	return nil
}

// blocksRemoval checks the kernel state, because the creation of another virtual server may have failed in an earlier sync.
func (f *Failures) blocksRemoval(key kernel.ServerKey) error {
	if addr := key.Addr.Addr(); f.want.HasAddress(addr) && !f.served(addr) {
		return skippedError{errUnserved}
	}
	for _, successor := range f.successors(key) {
		if _, exists := f.have.Servers[successor]; !exists {
			return skippedError{errUnreplaced}
		}
	}
	return nil
}

func (f *Failures) served(addr netip.Addr) bool {
	return slices.ContainsFunc(f.want.ServersAt(addr), func(key kernel.ServerKey) bool {
		_, exists := f.have.Servers[key]
		return exists
	})
}

// condition is a fact about one object that one operation establishes and other operations require.
type condition struct {
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
	setsReady            // all sets of a family exist with the right parameters
	rulesReady           // the chains of a family are complete
	owned                // the ledger contains the virtual server's entry
	ledgerComplete       // the ledger of a family contains every entry
	serverReady          // the virtual server exists
	addressListed        // the address is in the set of virtual addresses
	addressGone          // the address is not bound
	guarded              // the port is in the sets of its guards
	guardGone            // the port is in no guard's set
	destinationsSet      // the virtual server has the wanted destinations
	portClosed           // the port is in no set of open ports
	serverGone           // the virtual server does not exist
	limitsRecorded       // the set of connection limits contains the virtual server
)

// lastCommonFact is the last fact on which all Services depend.
const lastCommonFact = rulesReady

// provides lists the conditions that the operation establishes. If the operation fails, these conditions are missing.
func (f *Failures) provides(op kernel.Op) []condition {
	switch o := op.Object.(type) {
	case kernel.DummyDevice:
		return []condition{{fact: deviceReady}}
	case kernel.Set:
		if op.Verb != kernel.Delete {
			return []condition{{fact: setReady, set: o.Name}, {fact: setsReady, family: o.Family}}
		}
	case kernel.Ruleset:
		return []condition{{fact: rulesReady, family: o.Family}}
	case kernel.Member:
		return f.memberProvides(op.Verb, o)
	case kernel.Server:
		if op.Verb == kernel.Delete {
			return []condition{server(serverGone, o.Key)}
		}
		if op.Verb == kernel.Create {
			return []condition{server(serverReady, o.Key)}
		}
	case kernel.ServerDestination:
		return []condition{server(destinationsSet, o.Server)}
	case kernel.BoundAddress:
		if op.Verb == kernel.Delete {
			return []condition{address(addressGone, o.Addr)}
		}
	}
	return nil
}

func (f *Failures) memberProvides(verb kernel.Verb, m kernel.Member) []condition {
	set, _ := f.want.Set(m.Set)
	switch {
	case verb == kernel.Create && f.isLedger(m.Set):
		return []condition{server(owned, keyOf(m.Element)), {fact: ledgerComplete, family: set.Family}}
	case verb == kernel.Create && f.isLimited(m.Set):
		return []condition{server(limitsRecorded, keyOf(m.Element))}
	case verb == kernel.Create && set.VIPs:
		return []condition{address(addressListed, m.Element.Addr)}
	case verb == kernel.Create && set.Timing == want.Guard:
		return f.guardProvides(m)
	case verb == kernel.Delete && set.Timing == want.Guard:
		return []condition{server(guardGone, keyOf(m.Element))}
	case verb == kernel.Delete && set.Timing == want.Late && !set.VIPs:
		key := keyOf(m.Element)
		return []condition{server(portClosed, key), server(portClosed, key.AllPorts())}
	}
	return nil
}

// guardProvides includes the all-ports server that needs the guard. While a virtual server of the port lingers, new connections do not match
// the all-ports server yet.
func (f *Failures) guardProvides(m kernel.Member) []condition {
	key := keyOf(m.Element)
	provided := []condition{server(guarded, key), server(guarded, f.want.Match(key))}
	if allPorts := f.want.Server(key.AllPorts()); allPorts != nil && slices.Contains(allPorts.Members, m) {
		provided = append(provided, server(guarded, key.AllPorts()))
	}
	return provided
}

func (f *Failures) needs(op kernel.Op) []condition {
	switch o := op.Object.(type) {
	case kernel.Ruleset:
		return []condition{{fact: setsReady, family: o.Family}}
	case kernel.Member:
		return f.memberNeeds(op.Verb, o)
	case kernel.Server:
		switch op.Verb {
		case kernel.Create:
			return append([]condition{{fact: rulesReady, family: o.Key.Family()}, server(owned, o.Key)}, f.isGuarded(o.Key)...)
		case kernel.Update: // an adopted virtual server
			return []condition{server(owned, o.Key)}
		case kernel.Delete:
			return append(f.successorsReady(o.Key), address(addressGone, o.Key.Addr.Addr()), server(portClosed, o.Key))
		}
	case kernel.ServerDestination:
		if op.Verb != kernel.Delete {
			return append(f.isGuarded(o.Server), server(serverReady, o.Server), server(owned, o.Server), server(limitsRecorded, o.Server))
		}
	case kernel.BoundAddress:
		if op.Verb == kernel.Create {
			family := inet.FamilyOf(o.Addr)
			return []condition{{fact: deviceReady}, {fact: rulesReady, family: family}, address(addressListed, o.Addr)}
		}
	}
	return nil
}

func (f *Failures) memberNeeds(verb kernel.Verb, m kernel.Member) []condition {
	switch verb {
	case kernel.Create:
		return f.newMemberNeeds(m)
	case kernel.Delete:
		return f.removedMemberNeeds(m)
	}
	return nil
}

func (f *Failures) newMemberNeeds(m kernel.Member) []condition {
	set, _ := f.want.Set(m.Set)
	switch {
	case set.Timing == want.Late && !set.VIPs:
		key := f.want.Match(keyOf(m.Element))
		return append(f.isGuarded(key), condition{fact: setReady, set: m.Set}, server(serverReady, key), server(owned, key))
	case isSeal(f.want, m):
		return []condition{{fact: setReady, set: m.Set}, {fact: ledgerComplete, family: set.Family}}
	}
	return []condition{{fact: setReady, set: m.Set}}
}

func (f *Failures) removedMemberNeeds(m kernel.Member) []condition {
	set, _ := f.want.Set(m.Set)
	switch {
	case set.VIPs:
		needed := []condition{address(addressGone, m.Element.Addr)}
		for _, allPorts := range serversFor(m.Element) { // at a node address, an all-ports server would receive the packets to every port
			needed = append(needed, server(serverGone, allPorts))
		}
		return needed
	case f.isLedger(m.Set):
		return []condition{server(serverGone, keyOf(m.Element)), address(addressGone, m.Element.Addr)} // the entry is also the owner record of the address
	case f.isLimited(m.Set):
		// Without this entry, the agent would never look up the limit again.
		return []condition{server(destinationsSet, keyOf(m.Element)), server(serverGone, keyOf(m.Element))}
	case set.Timing == want.Guard:
		// A virtual server that could not be deleted still receives packets, so its guards stay. They also stay if another guard that
		// should drop or masquerade some of these packets could not be written.
		var needed []condition
		for _, key := range serversFor(m.Element) {
			needed = append(needed, server(guarded, key), server(destinationsSet, key), server(serverGone, key))
		}
		if m.Element.Protocol == 0 {
			needed = append(needed, f.failedAt(m.Element.Addr)...)
		}
		return needed
	case set.Timing == want.Early:
		return []condition{server(guardGone, keyOf(m.Element))}
	}
	return nil
}

// An all-ports server also needs the guard of the whole address, and so does a virtual server with source ranges.
func (f *Failures) isGuarded(key kernel.ServerKey) []condition {
	needed := []condition{server(guarded, key)}
	if wanted := f.want.Server(key); wanted != nil && slices.ContainsFunc(wanted.Members, f.guardsAddress) {
		needed = append(needed, address(guarded, key.Addr.Addr()))
	}
	return needed
}

func (f *Failures) guardsAddress(m kernel.Member) bool {
	set, _ := f.want.Set(m.Set)
	return set.Timing == want.Guard && m.Element.Protocol == 0
}

// failedAt lists the missing conditions of an address's ports, sorted. An entry for the whole address may guard any of these ports.
func (f *Failures) failedAt(addr netip.Addr) []condition {
	var failed []condition
	for c := range f.missing {
		if c.addr.Addr() == addr && (c.fact == guarded || c.fact == destinationsSet || c.fact == serverGone) {
			failed = append(failed, c)
		}
	}
	slices.SortFunc(failed, func(a, b condition) int {
		return cmp.Or(a.addr.Compare(b.addr), cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.fact, b.fact))
	})
	return failed
}

// serversFor lists the virtual servers that a packet may match after passing a guard: the port's own, or all-ports servers of the address.
func serversFor(e kernel.Element) []kernel.ServerKey {
	if key := keyOf(e); e.Protocol != 0 {
		return []kernel.ServerKey{key, key.AllPorts()}
	}
	var allPorts []kernel.ServerKey
	for _, p := range []inet.Protocol{inet.TCP, inet.UDP, inet.SCTP} {
		allPorts = append(allPorts, kernel.ServerKey{Addr: netip.AddrPortFrom(e.Addr, 0), Protocol: p})
	}
	return allPorts
}

// successorsReady lists the conditions for deleting a virtual server whose ports move to another.
func (f *Failures) successorsReady(key kernel.ServerKey) []condition {
	var needed []condition
	for _, successor := range f.successors(key) {
		needed = append(needed, server(serverReady, successor), server(destinationsSet, successor))
	}
	return needed
}

// successors lists the virtual servers to which the ports of an unwanted virtual server move: an all-ports server replaces per-port
// servers, or vice versa.
func (f *Failures) successors(key kernel.ServerKey) []kernel.ServerKey {
	var successors []kernel.ServerKey
	if successor := f.want.Match(key); successor != key {
		successors = append(successors, successor)
	}
	if key == key.AllPorts() {
		successors = append(successors, f.perPortOf(key)...) // needed even if the address is now the node's own
	}
	return successors
}

// perPortOf groups the wanted virtual servers only once per sync, because a sync may delete many all-ports servers.
func (f *Failures) perPortOf(allPorts kernel.ServerKey) []kernel.ServerKey {
	if f.perPort == nil {
		f.perPort = map[kernel.ServerKey][]kernel.ServerKey{}
		for key := range f.want.Servers {
			f.perPort[key.AllPorts()] = append(f.perPort[key.AllPorts()], key)
		}
	}
	return f.perPort[allPorts]
}

func (f *Failures) isLedger(set string) bool { return isOneOf(f.want.Base().Ledger, set) }

func (f *Failures) isLimited(set string) bool { return isOneOf(f.want.Base().Limited, set) }

func isOneOf(names map[inet.Family]string, set string) bool {
	for _, name := range names {
		if name == set {
			return true
		}
	}
	return false
}

func server(f fact, key kernel.ServerKey) condition {
	return condition{fact: f, addr: key.Addr, protocol: key.Protocol}
}

func address(f fact, a netip.Addr) condition {
	return condition{fact: f, addr: netip.AddrPortFrom(a, 0)}
}

func keyOf(e kernel.Element) kernel.ServerKey {
	return kernel.ServerKey{Addr: netip.AddrPortFrom(e.Addr, e.Port), Protocol: e.Protocol}
}
