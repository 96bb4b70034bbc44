// Package iptables is the backend for our chains and for the jumps to them from the built-in chains.
//
// Rules are constant in number, Services change sets only; so this runs seldom, and starts processes: save to read, restore to
// write (one per family, all tables in one text), go-iptables to learn the version and to clean up.
//
// May import: the standard library, kernel, inet, coreos/go-iptables and golang.org/x/sys/unix.
package iptables
