package balance

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
)

// The number of slots of a frontend depends on its weights. A weight that is small compared to the others needs many slots.
const minSlots, maxSlots = 1 << 8, 1 << 12

// mostSlots returns the maximum number of slots for n endpoints.
func mostSlots(n int) int { return max(maxSlots, 4*n) }

// frontend is a virtual server as the maps represent it.
type frontend struct {
	kernel.Server
	// slots lists the endpoints by slot number; an endpoint has as many slots as its weight requires. idle lists the endpoints with
	// weight 0.
	slots, idle []kernel.Destination
	// gone lists the removed endpoints that the client map may still contain, sorted by address.
	gone []netip.AddrPort
	// forgetful is true if there are too many removed endpoints, or unknown ones. The agent then deletes all records of clients.
	forgetful bool
	// old is true if version 0.1.0 wrote a frontend without affinity: it is in the map of frontends until its next change.
	old bool
}

// maxGone is the maximum number of removed endpoints, each of which requires a rule.
const maxGone = 100

func (f *frontend) hasAffinity() bool {
	return f.Flags&kernel.FlagPersistent != 0 && f.Timeout > 0 && len(f.slots) > 0
}

func (f *frontend) picker() picker {
	return picker{family: f.Key.Family(), slots: len(f.slots), allPorts: f.Key == f.Key.AllPorts()}
}

func (f *frontend) chains() []Chain {
	pick := f.picker()
	if !f.hasAffinity() {
		return []Chain{pick.chain()}
	}
	return append([]Chain{pick.chain()}, f.affinity().chains()...)
}

func (f *frontend) chainNames() []string {
	names := []string{f.picker().name()}
	if f.hasAffinity() {
		names = append(names, f.affinity().recordName(), f.affinity().name())
	}
	return names
}

// recordChain returns the chain that records the clients of the frontend. It is wire.Nowhere for a port without affinity. Otherwise, an
// all-ports server at the same address, possibly of another Service, would record the client. It is empty if the frontend translates
// nothing, or is itself an all-ports server.
func (f *frontend) recordChain() string {
	switch {
	case f.hasAffinity():
		return f.affinity().recordName()
	case len(f.slots) == 0 || f.Key == f.Key.AllPorts():
		return ""
	}
	return wire.Nowhere
}

func (f *frontend) affinity() affinity {
	return affinity{f.Key, f.Timeout, f.MaskBits, f.gone, f.picker()}
}

func (f *frontend) chain() string {
	if f.hasAffinity() {
		return f.affinity().name()
	}
	return f.picker().name()
}

func (f *frontend) destinations() []kernel.Destination {
	all := slices.Concat(f.slots, f.idle)
	slices.SortFunc(all, kernel.Destination.Compare)
	return slices.CompactFunc(all, func(a, b kernel.Destination) bool { return a.Addr == b.Addr })
}

func (f *frontend) observed(limits bool) kernel.ObservedServer {
	o := kernel.ObservedServer{Server: f.Server}
	for _, d := range f.destinations() {
		if !limits {
			d.Upper, d.Lower = 0, 0
		}
		o.Destinations = append(o.Destinations, kernel.ObservedDestination{Destination: d})
	}
	return o
}

func (f *frontend) hasRightSlots() bool {
	if f.hasOneSlotEach() {
		return true
	}
	want := f.with(f.Server, f.destinations())
	count := func(slots []kernel.Destination) map[kernel.Destination]int {
		n := map[kernel.Destination]int{}
		for _, d := range slots {
			n[d]++
		}
		return n
	}
	return maps.Equal(count(f.slots), count(want.slots)) && len(f.idle) == len(want.idle)
}

// hasOneSlotEach is a fast check of the most frequent kind of frontend: all endpoints have the same weight.
func (f *frontend) hasOneSlotEach() bool {
	if len(f.slots) > 20 || len(f.idle) > 0 {
		return false
	}
	for i, d := range f.slots {
		if d.Weight == 0 || d.Weight != f.slots[0].Weight || slices.ContainsFunc(f.slots[:i], func(o kernel.Destination) bool { return o.Addr == d.Addr }) {
			return false
		}
	}
	return true
}

// with returns the frontend with a different configuration and different destinations. It keeps as many slots as possible.
func (f *frontend) with(s kernel.Server, dests []kernel.Destination) *frontend {
	next := &frontend{Server: s}
	active := make([]kernel.Destination, 0, len(dests))
	idle := make([]kernel.Destination, 0)
	for _, d := range dests {
		if d.Weight == 0 {
			idle = append(idle, d)
		} else {
			active = append(active, d)
		}
	}
	slices.SortFunc(active, kernel.Destination.Compare)
	slices.SortFunc(idle, kernel.Destination.Compare)
	next.slots = place(f.slots, active, apportion(active))
	next.idle = place(f.idle, idle, apportion(idle))
	switch {
	case !next.hasAffinity():
	case !f.hasAffinity():
		next.forgetful = true // an agent that was killed may have left a client map
	default:
		if next.gone = f.goneWithout(active); len(next.gone) > maxGone {
			next.gone, next.forgetful = nil, true
		}
	}
	return next
}

// goneWithout returns the endpoints that the client map may contain, without the active ones.
func (f *frontend) goneWithout(active []kernel.Destination) []netip.AddrPort {
	gone := map[netip.AddrPort]struct{}{}
	for _, d := range f.slots {
		gone[d.Addr] = struct{}{}
	}
	for _, a := range f.gone {
		gone[a] = struct{}{}
	}
	for _, d := range active {
		delete(gone, d.Addr)
	}
	return slices.SortedFunc(maps.Keys(gone), netip.AddrPort.Compare)
}

// apportion returns the number of slots of each destination: its weight, divided by the greatest common divisor of all weights. If the sum
// is too large, apportion scales the numbers down to the fewest slots with an error of at most a twentieth in each share. If that is not
// possible, it uses the largest number of slots.
func apportion(dests []kernel.Destination) []int {
	weights, divisor, total := make([]int, len(dests)), uint32(0), 0
	for _, d := range dests {
		divisor = gcd(divisor, d.Weight)
	}
	for i, d := range dests {
		weights[i] = int(d.Weight / max(divisor, 1))
		total += weights[i]
	}
	most := mostSlots(len(dests))
	if total <= most {
		return scaled(weights, total, total)
	}
	for slots := minSlots; slots < most; slots *= 2 {
		if counts := scaled(weights, total, slots); precise(counts, weights, total) {
			return counts
		}
	}
	return scaled(weights, total, most)
}

// scaled scales the weights. No result is less than 1.
func scaled(weights []int, from, to int) []int {
	counts := make([]int, len(weights))
	for i, w := range weights {
		counts[i] = max(1, (w*to+from/2)/max(from, 1))
	}
	return counts
}

// precise reports whether the error of each share is at most a twentieth of the share.
func precise(counts, weights []int, total int) bool {
	slots := 0.0
	for _, n := range counts {
		slots += float64(n)
	}
	for i, w := range weights {
		wanted := float64(w) / float64(total)
		if math.Abs(float64(counts[i])/slots-wanted) > wanted/20 {
			return false
		}
	}
	return true
}

func gcd(a, b uint32) uint32 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// place assigns slots to the destinations. Each destination keeps as many of its slots as possible.
func place(have, dests []kernel.Destination, counts []int) []kernel.Destination {
	index, total := make(map[netip.AddrPort]int, len(dests)), 0
	for i, d := range dests {
		index[d.Addr] = i
		total += counts[i]
	}
	left, slots, free := slices.Clone(counts), make([]kernel.Destination, total), []int(nil)
	for n := range slots {
		if n < len(have) {
			if i, wanted := index[have[n].Addr]; wanted && left[i] > 0 {
				slots[n] = dests[i]
				left[i]--
				continue
			}
		}
		free = append(free, n)
	}
	for i, d := range dests {
		for range left[i] {
			slots[free[0]] = d
			free = free[1:]
		}
	}
	return slots
}

// checkServer rejects what IPVS would reject.
func checkServer(s kernel.Server) error {
	if int(s.MaskBits) > s.Key.Family().Bits() {
		return kernel.InvalidError{Reason: fmt.Errorf("the persistence mask has %d bits, but the address has %d", s.MaskBits, s.Key.Family().Bits())}
	}
	if !slices.Contains(schedulers, s.Scheduler) {
		return kernel.NoSchedulerError{Scheduler: s.Scheduler}
	}
	return nil
}

func checkDestination(server kernel.ServerKey, d kernel.Destination) error {
	const maxWeight = 1<<31 - 1
	a := d.Addr.Addr()
	switch {
	case inet.FamilyOf(a) != server.Family():
		return kernel.InvalidError{Reason: fmt.Errorf("the address is not %s", server.Family())}
	case a.IsUnspecified() || a.IsMulticast() || a.IsLinkLocalUnicast() && a.Is6() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return kernel.InvalidError{Reason: errors.New("the address is not a unicast address")}
	case d.Weight > maxWeight:
		return kernel.InvalidError{Reason: fmt.Errorf("the weight is more than %d", maxWeight)}
	case d.Upper > 0 && d.Lower > d.Upper:
		return kernel.InvalidError{Reason: errors.New("the lower limit exceeds the upper limit")}
	}
	return nil
}

// schedulers are the names of the IPVS schedulers. The agent keeps the scheduler's name, but balancing is always weighted random.
var schedulers = []string{"rr", "wrr", "lc", "wlc", "fo", "ovf", "lblc", "lblcr", "dh", "sh", "mh", "sed", "nq", "twos"}

// draft is a virtual server to which operations are applied. Its destinations are sorted by address.
type draft struct {
	exists bool
	kernel.Server
	dests []kernel.Destination
}

// apply applies one operation. changes is false if the draft was already in the state that the operation requests.
func (d *draft) apply(op kernel.Op) (changes bool, err error) {
	switch o := op.Object.(type) {
	case kernel.Server:
		return d.applyServer(op.Verb, o)
	case kernel.ServerDestination:
		return d.applyDestination(op.Verb, o)
	}
	return false, errors.New("neither a virtual server nor a destination")
}

func (d *draft) applyServer(verb kernel.Verb, s kernel.Server) (changes bool, err error) {
	if verb == kernel.Delete {
		changes = d.exists
		d.exists, d.dests = false, nil
		return changes, nil
	}
	s.MaskBits = cmp.Or(s.MaskBits, uint8(s.Key.Family().Bits()))
	switch {
	case verb == kernel.Update && !d.exists:
		return false, kernel.ErrNotFound
	case verb == kernel.Create && d.exists && d.Server == s:
		return false, nil // no other program creates virtual servers here
	case verb == kernel.Create && d.exists:
		return false, kernel.ErrExists
	}
	if err := checkServer(s); err != nil {
		return false, err
	}
	changes = d.Server != s || !d.exists
	d.exists, d.Server = true, s
	return changes, nil
}

func (d *draft) applyDestination(verb kernel.Verb, o kernel.ServerDestination) (changes bool, err error) {
	i, found := slices.BinarySearchFunc(d.dests, o.Destination, kernel.Destination.Compare)
	if verb == kernel.Delete {
		if found {
			d.dests = slices.Delete(d.dests, i, i+1)
		}
		return found, nil
	}
	if !d.exists {
		return false, fmt.Errorf("virtual server %w", kernel.ErrNotFound)
	}
	if err := checkDestination(o.Server, o.Destination); err != nil {
		return false, err
	}
	switch {
	case verb == kernel.Create && found && d.dests[i] == o.Destination:
		return false, nil
	case verb == kernel.Create && found:
		return false, kernel.ErrExists
	case verb == kernel.Create:
		d.dests = slices.Insert(d.dests, i, o.Destination)
		return true, nil
	case !found:
		return false, kernel.ErrNotFound
	}
	changes = d.dests[i] != o.Destination
	d.dests[i] = o.Destination
	return changes, nil
}
