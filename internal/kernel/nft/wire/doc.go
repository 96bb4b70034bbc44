// Package wire encodes and decodes the messages of nftables, and runs transactions on the agent's table. It knows the kernel's objects:
// chains, rules and their expressions, sets and their elements. Their purpose is up to the callers.
//
// May import: the standard library, kernel, inet, nlbatch and golang.org/x/sys/unix.
package wire
