// Package iptables is the backend for the agent's chains and for the jumps to them from the built-in chains.
//
// The number of rules is constant, and Services change only sets. Because this backend runs rarely, it can afford to start processes:
// iptables-save to read, one iptables-restore per family to write, and go-iptables to detect the version and to clean up.
//
// May import: the standard library, kernel, kernel/nft/wire, inet, coreos/go-iptables and golang.org/x/sys/unix.
package iptables
