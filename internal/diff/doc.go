// Package diff compares the kernel state with the wanted state, and orders the operations that lead from one to the other so that no packet
// sees a half-written Service.
//
// It is pure (I2). The package is large because this order determines what packets see during an update: order.go contains the phases and
// their reasons, depend.go the operations to skip after a failure, scope.go the objects that are ours, drain.go and lingering.go the
// conditions for removing a destination or a virtual server with open connections.
//
// May import: kernel, want, inet, and the parts of the standard library that contain no clock, random numbers or logger.
package diff
