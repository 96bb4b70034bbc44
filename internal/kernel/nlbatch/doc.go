// Package nlbatch sends many netlink requests with one system call and returns the kernel's answer to each of them.
//
// Common libraries send one request and wait for its answer, which takes most of the time of a large change. The kernel
// handles all requests of one send before the call returns, so nlbatch collects their answers together. Such libraries
// may also wait forever, or reuse a socket that has lost answers. In nlbatch, every read has a deadline, and a failed
// connection is closed. Requests without an answer then fail with an unknown outcome, and the next use dials again.
// docs/decisions/0002-libraries.md explains why nlbatch does not use mdlayher/netlink.
//
// A Conn is not safe for concurrent use. It dials in the network namespace of the calling thread. A test that changes
// the namespace must lock its goroutine to the thread.
//
// May import: the standard library, golang.org/x/sys/unix and netlink's constants.
package nlbatch
