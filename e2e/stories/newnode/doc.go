// Package newnode measures how long a new node takes to become useful in a cluster with thousands of Services.
//
// It measures time in a guest whose CPU executes one instruction per nanosecond, so the result does not depend on the
// machine's load. A current server's core is several times faster.
package newnode
