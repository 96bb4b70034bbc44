// Package iptables is the backend for our chains and for the jumps to them from the built-in chains.
//
// The number of rules is constant, and Services change only sets. Because this backend runs rarely, it can start processes: iptables-save to
// read, one iptables-restore per family to write, and go-iptables to detect the version and to clean up.
//
// Most of its code detects the node's iptables variant and explains error messages of iptables-restore.
//
// May import: the standard library, kernel, inet, coreos/go-iptables and golang.org/x/sys/unix.
package iptables
