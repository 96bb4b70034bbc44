// Package status serves the state of the running agent to root, on a unix socket: read-only HTTP with JSON and versioned paths.
// Only root can open the socket.
//
// May import: agent, model, rundir and view.
package status
