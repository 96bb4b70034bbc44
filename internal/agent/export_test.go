package agent

// HoldAddresses is for tests outside the package.
const HoldAddresses = holdAddresses
