package diff

import (
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Options say what the caller knows beyond the two states.
type Options struct {
	// Fresh says whether the connection counts of a virtual server were read for this comparison. Remembered counts never
	// justify that a destination goes.
	Fresh func(kernel.ServerKey) bool
	// Expired says whether a destination has been draining for as long as it may.
	Expired func(kernel.ServerKey, kernel.Destination) bool
	// Known says whether a virtual server was ours when last looked at, though its ledger entry may be gone since.
	Known func(kernel.ServerKey) bool
	// Contested says whether a virtual server is somebody else's although the ledger has it: it was made between our looking
	// and our writing, and our entry could not be taken back yet.
	Contested func(kernel.ServerKey) bool
	// Unsettable says whether an optional sysctl was refused before.
	Unsettable func(kernel.SysctlSetting) bool
	// Weight says what a wanted destination's weight is to be by now, where it rises slowly. Nil means the full weight.
	Weight func(*want.Server, kernel.Destination) uint32
}

func (o Options) weight(server *want.Server, d kernel.Destination) uint32 {
	if o.Weight == nil || server.SlowStart == 0 {
		return d.Weight
	}
	return o.Weight(server, d)
}

func (o Options) mayAdopt(key kernel.ServerKey) bool { return o.Contested == nil || !o.Contested(key) }

// Draining says whether a destination takes no new connections and waits for its last one to end. This is read from the
// kernel alone (I9): weight 0, and not wanted.
func Draining(want []kernel.Destination, have kernel.ObservedDestination) bool {
	return have.Weight == 0 && !contains(want, have.Destination)
}

func contains(ds []kernel.Destination, d kernel.Destination) bool {
	for _, w := range ds {
		if w.Addr == d.Addr {
			return true
		}
	}
	return false
}

// release plans the end of a destination that is not wanted any more. Its TCP connections may end in peace; UDP and SCTP
// flows move on at once, because a flow has no end that the kernel would see.
func (b *builder) release(key kernel.ServerKey, d kernel.ObservedDestination, opt Options) {
	gone := key.Protocol != inet.TCP ||
		opt.Fresh != nil && opt.Fresh(key) && d.Stats.Connections() == 0 ||
		opt.Expired != nil && opt.Expired(key, d.Destination)
	object := kernel.ServerDestination{Server: key, Destination: d.Destination}
	switch {
	case gone:
		b.add(phaseDestinationsOut, kernel.Delete, object)
	case d.Weight != 0:
		object.Weight = 0
		b.add(phaseDestinationsOut, kernel.Update, object)
	}
}

// Repairs counts the operations that are not just the end of a destination's draining.
func Repairs(p Plan) int {
	n := 0
	for _, op := range p.Ops() {
		d, ok := op.Object.(kernel.ServerDestination)
		if !ok || op.Verb != kernel.Delete || d.Weight != 0 {
			n++
		}
	}
	return n
}
