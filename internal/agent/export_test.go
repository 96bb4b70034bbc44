package agent

// This file exports identifiers to tests outside the package.
const (
	HoldAddresses = holdAddresses
	HoldInherited = holdInherited
	MaxPart       = maxPart
)

// SetPartSize makes interruptions likely.
func (a *Agent) SetPartSize(n int) { a.writer.partSize = n }
