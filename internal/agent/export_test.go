package agent

import (
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
)

const (
	HoldAddresses = holdAddresses
	HoldInherited = holdInherited
	MaxPart       = maxPart
)

// SetPartSize sets the size of a part. A small size makes interruptions likely.
func (a *Agent) SetPartSize(n int) { a.writer.partSize = n }

// Leftovers returns the leftovers among the suspects, and among all objects. The loop must be idle.
func (a *Agent) Leftovers() (found, all diff.Leftovers) {
	p := a.planner
	have := p.known.State()
	opt := p.options(time.Now(), have)
	return p.suspects.Leftovers(p.target, have, opt), diff.AllLeftovers(p.target, have, opt)
}

// KnowsKernel reports whether the agent knows the kernel's state. Only the agent's own calls may ask.
func (a *Agent) KnowsKernel() bool { return a.planner.known.State() != nil }
