// Package conntrack deletes tracked connections whose endpoint is gone: the kernel sends every packet of a connection to where the
// first one went, so a client that never pauses never gets another endpoint.
//
// It has its own reader. vishvananda/netlink keeps the whole table in memory, reads no SCTP ports, relies on the order of attributes,
// and waits for each deletion; ti-mo/conntrack also returns the whole table and waits (docs/decisions/0002-libraries.md).
//
// May import: the standard library, kernel, inet, nlbatch and golang.org/x/sys/unix.
package conntrack
