// Package services tests the agent from end to end: real Services in a real API server, the real agent on every node, real
// packets between pods, hosts and clients outside, on a real kernel.
//
// It holds nothing but tests. `make e2e` runs them.
package services
