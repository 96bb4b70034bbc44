// Package scale measures on a real kernel what changes cost when ten thousand Services are in place, and fails when the cost
// of a change is more than its size.
//
// It holds nothing but tests.
package scale
