package agent

const (
	HoldAddresses = holdAddresses
	HoldInherited = holdInherited
	MaxPart       = maxPart
)

// SetPartSize sets the size of a part. A small size makes interruptions likely.
func (a *Agent) SetPartSize(n int) { a.writer.partSize = n }
