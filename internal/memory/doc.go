// Package memory gives memory back to the operating system, and keeps it near to what the agent holds.
//
// The first sync of a node makes far more garbage than the agent holds later. Without a limit, the Go runtime keeps most of it.
//
// May import: nothing of kube-ipvs, and zap.
package memory
