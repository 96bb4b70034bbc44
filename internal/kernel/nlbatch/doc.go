// Package nlbatch sends many netlink requests with one system call and tells for each of them what the kernel answered.
//
// The usual libraries send one request and wait, which costs most of the time of a large change: the kernel handles all
// requests of one send before the call returns, so their answers can be collected together. They also may wait for ever, and
// go on with a socket that has lost answers. Here every read has a deadline, and a connection that lost its place is closed:
// requests whose fate is then unknown say so (ErrOutcomeUnknown), and the next use dials again.
//
// A Conn belongs to one goroutine. It is dialled, and dialled again, in the network namespace of the calling thread: an agent
// stays in one namespace, a test that changes it must lock its goroutine to the thread.
//
// May import: the standard library, golang.org/x/sys/unix and netlink's constants.
package nlbatch
