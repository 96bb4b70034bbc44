// Package wire encodes and decodes the messages of nftables, and runs transactions on the agent's table. It covers
// the kernel's objects: chains, rules and their expressions, sets and their elements. The packages that read other
// programs' tables use the same decoders.
//
// May import: the standard library, kernel, inet, nlbatch and golang.org/x/sys/unix.
package wire
