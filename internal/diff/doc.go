// Package diff compares what the kernel has with what it should have and orders the operations between the two so that no
// packet meets a half-made Service.
//
// It is pure (I2). order.go says what comes before what and why, scope.go what is ours, drain.go when a destination may go.
//
// May import: kernel, want, inet; of the standard library nothing that has a clock, a random number or a logger.
package diff
