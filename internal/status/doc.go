// Package status lets root ask the running agent what it knows, over a unix socket: HTTP with JSON, versioned paths, nothing
// that changes anything. Whoever is not root cannot open the socket.
//
// May import: agent, model and view.
package status
