// Package wire has the messages of nftables, and transactions with them on the agent's table. It knows the kernel's objects: chains, rules
// and their expressions, sets and their elements. What they are for, its callers know.
//
// May import: the standard library, kernel, inet, nlbatch and golang.org/x/sys/unix.
package wire
