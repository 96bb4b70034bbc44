// Package newnode measures how long a new node takes to become useful in a cluster that has thousands of Services.
//
// Time is that of a guest whose CPU executes one instruction in each nanosecond: it says the same on a busy machine and on an idle one,
// and a core of a server of today is some times faster.
//
// It holds nothing but tests.
package newnode
