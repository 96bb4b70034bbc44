// Package conntrack deletes tracked connections that lead elsewhere than their Service: the kernel sends every packet of a connection to
// where the first one went, so a client that never pauses never gets another endpoint.
//
// Of TCP it deletes only connections without an answer, and reads each of them again right before it deletes it. Between the two
// requests lie 5 µs (median of 2,000; 99 %: 18 µs). A connection that gets its answer in that time loses its address translation and
// must begin again. No such connection leads to an endpoint of its Service.
//
// A walk costs the kernel 50 ms for each family and protocol with 100,000 tracked TCP connections in a table of 262,144 buckets, most of it
// for the buckets. A kernel before 5.15 sends the TCP connections with an answer, too: three times as much.
//
// It has its own reader. vishvananda/netlink keeps the whole table in memory, reads no SCTP ports, relies on the order of attributes,
// and waits for each deletion; ti-mo/conntrack also returns the whole table and waits (docs/decisions/0002-libraries.md).
//
// May import: the standard library, kernel, inet, nlbatch and golang.org/x/sys/unix.
package conntrack
