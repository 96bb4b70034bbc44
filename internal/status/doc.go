// Package status serves the state of the running agent to root, on a unix socket: HTTP with JSON, versioned paths, and no request
// that changes anything. Only root can open the socket.
//
// May import: agent, model, rundir and view.
package status
