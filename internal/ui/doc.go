// Package ui serves a web page that shows what the agents of one or more nodes do. The data comes from a Node: this machine or, through
// Client and Serve, a machine at the other end of a stream.
//
// The server is for one user of this machine: it listens on a loopback address, and every path begins with a secret.
//
// May import: nothing from this module.
package ui
