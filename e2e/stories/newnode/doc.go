// Package newnode measures how long a new node takes to become useful in a cluster with thousands of Services.
//
// Time is measured in a guest whose CPU executes one instruction per nanosecond, so the result does not depend on the machine's
// load. A core of a current server is several times faster.
//
// It contains only tests.
package newnode
