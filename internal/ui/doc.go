// Package ui serves a page in the browser that shows what the agents of one or more nodes do. Its answers come from a Node, which is this
// machine or, through Client and Serve, a machine at the other end of a stream.
//
// The server is for one user at this machine: it listens on a loopback address, and every path begins with a secret.
//
// May import: nothing of this module.
package ui
