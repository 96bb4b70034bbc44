// Package conntrack deletes tracked connections that lead to an endpoint outside their Service. The kernel sends every packet of a
// connection to the destination of the first one, so a client that never pauses never reaches another endpoint.
//
// It deletes a TCP connection only if it is unanswered, and reads it again right before the deletion. The two requests are 5 µs apart
// (median of 2,000; 99th percentile: 18 µs). A connection that is answered in that time loses its address translation and must be reopened.
// None of these connections leads to an endpoint of its Service.
//
// A walk costs the kernel 50 ms per family and protocol with 100,000 tracked TCP connections in a table of 262,144 buckets, most of it
// spent on the buckets. Kernels before 5.15 also send answered TCP connections, which takes three times as long.
//
// The package has its own reader. vishvananda/netlink keeps the whole table in memory, does not read SCTP ports, relies on the order of
// attributes, and waits for each deletion. ti-mo/conntrack also returns the whole table and waits (docs/decisions/0002-libraries.md).
//
// May import: the standard library, kernel, inet, nlbatch and golang.org/x/sys/unix.
package conntrack
