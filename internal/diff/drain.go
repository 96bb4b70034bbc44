package diff

import (
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Options provide facts that the two states do not contain. If a function is nil, its fact is unknown.
type Options struct {
	// Fresh reports whether the connection counts of a virtual server were read for this comparison. Counts from an earlier read never
	// justify removing a destination.
	Fresh func(kernel.ServerKey) bool
	// Expired reports whether a destination has reached the drain timeout.
	Expired func(kernel.ServerKey, kernel.Destination) bool
	// Draining reports whether a destination counts as draining. Plan.AtZero depends on it.
	Draining func(kernel.ServerKey, netip.AddrPort) bool
	// Known reports whether a virtual server was ours when the agent last checked, even if its owner record has been deleted since.
	Known func(kernel.ServerKey) bool
	// Contested reports whether a virtual server is foreign although it is in the ledger: another program created it between our lookup
	// and our write, and its owner record could not be removed yet.
	Contested func(kernel.ServerKey) bool
	// Unsettable returns the reason why the kernel refuses to set an optional sysctl, or nil.
	Unsettable func(kernel.SysctlSetting) error
	// Room returns how many more destinations of the virtual server's Service may drain. Any further destinations are removed.
	Room func(*want.Server) int
	// Weight returns the current weight of a wanted destination in slow start. Nil means the full weight.
	Weight func(*want.Server, kernel.Destination) uint32
	// UpdateWeights prepares Weight for the touched virtual servers, or for all if touched is nil. It may be nil.
	UpdateWeights func(touched *want.Touched)
}

func (o Options) updateWeights(touched *want.Touched) {
	if o.UpdateWeights != nil {
		o.UpdateWeights(touched)
	}
}

func (o Options) weight(server *want.Server, d kernel.Destination) uint32 {
	if o.Weight == nil || server.SlowStart == 0 {
		return d.Weight
	}
	return o.Weight(server, d)
}

func (o Options) mayAdopt(key kernel.ServerKey) bool { return o.Contested == nil || !o.Contested(key) }

// Draining reports whether a destination receives no new connections and stays only until its last connection ends. Only the kernel's
// state decides this (I9): the destination has weight 0 and is not wanted.
func Draining(server *want.Server, have kernel.ObservedDestination) bool {
	return have.Weight == 0 && !sends(server, have)
}

func sends(server *want.Server, have kernel.ObservedDestination) bool {
	_, wanted := server.Destination(have.Addr)
	return wanted
}

// release drains or removes a destination that is no longer wanted. TCP connections are given time to end on their own. UDP and SCTP flows
// move to another destination immediately, because the kernel cannot tell when a flow ends.
func (b *builder) release(server *want.Server, d kernel.ObservedDestination, opt Options) {
	key := server.Key
	gone := key.Protocol != inet.TCP ||
		opt.Fresh != nil && opt.Fresh(key) && d.Stats.Connections() == 0 ||
		opt.Expired != nil && opt.Expired(key, d.Destination)
	object := kernel.ServerDestination{Server: key, Destination: d.Destination}
	starts := d.Weight != 0 || opt.Draining != nil && !opt.Draining(key, d.Addr)
	switch {
	case gone, starts && !b.mayDrain(server, opt):
		b.add(phaseDestinationsOut, kernel.Delete, object)
	case d.Weight != 0:
		object.Weight = 0
		b.add(phaseDestinationsOut, kernel.Update, object)
	case starts:
		b.atZero = append(b.atZero, object)
	}
}

func (b *builder) mayDrain(server *want.Server, opt Options) bool {
	if opt.Room == nil {
		return true
	}
	if b.drain == nil {
		b.drain = map[want.ServiceID]int{}
	}
	b.drain[server.Owner.Service]++
	return b.drain[server.Owner.Service] <= opt.Room(server)
}

// IsRepair returns false for the removal of a drained destination. A full sync may plan this removal even if nothing has drifted.
func IsRepair(op kernel.Op) bool {
	d, ok := op.Object.(kernel.ServerDestination)
	return !ok || op.Verb != kernel.Delete || d.Weight != 0
}
