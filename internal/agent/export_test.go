package agent

const (
	HoldAddresses = holdAddresses
	HoldInherited = holdInherited
	MaxPart       = maxPart
)

// SetPartSize sets a small part size, so that interruptions are likely.
func (a *Agent) SetPartSize(n int) { a.writer.partSize = n }
