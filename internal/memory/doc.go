// Package memory returns memory to the operating system, and keeps memory use close to the agent's live data.
//
// The first sync of a node allocates far more than the agent needs later. Without a limit, the Go runtime keeps most of that memory.
//
// May import: zap, x/sys/unix.
package memory
