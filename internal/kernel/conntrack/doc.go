// Package conntrack ends tracked connections that lead nowhere: the kernel sends every further packet of a connection to where
// the first one went, and a client that never pauses never gets another endpoint.
//
// It has its own reader beside vishvananda/netlink's. That one holds the whole table in memory, reads no ports of SCTP, expects
// attributes in a certain order without looking, and waits for each deletion by itself.
//
// May import: the standard library, kernel, inet, nlbatch and golang.org/x/sys/unix.
package conntrack
