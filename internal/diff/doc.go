// Package diff compares what the kernel has with what it should have, and orders the operations between the two so that no packet
// finds a half-made Service.
//
// It is pure (I2). It is large because this order is all that a packet sees of an update: order.go says which phase comes before which
// and why, depend.go what is skipped when an operation fails, scope.go what is ours, drain.go and lingering.go when a destination or a
// virtual server with open connections may go.
//
// May import: kernel, want, inet; of the standard library nothing that has a clock, a random number or a logger.
package diff
