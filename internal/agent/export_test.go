package agent

// These are for tests outside the package.
const (
	HoldAddresses = holdAddresses
	HoldInherited = holdInherited
)
