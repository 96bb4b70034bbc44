package agent

const (
	HoldAddresses = holdAddresses
	HoldInherited = holdInherited
	MaxPart       = maxPart
)

// SetPartSize sets the size of a part. A small size makes interruptions likely.
func (a *Agent) SetPartSize(n int) { a.writer.partSize = n }

// KnowsKernel reports whether the agent knows the kernel's state. Only the agent's own calls may ask.
func (a *Agent) KnowsKernel() bool { return a.planner.known.State() != nil }
