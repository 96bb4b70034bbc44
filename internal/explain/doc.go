// Package explain traces one packet through a node's kernel and names the deciding kernel object at each step. If the packet
// does not arrive, it says why, and which wanted objects are missing.
//
// It is pure: it turns the kernel state, the agent's view (if any) and the question into steps. It evaluates the rules in the
// kernel rather than the wanted ones, so it also shows what other programs do to the packet.
//
// Most of the code evaluates rules (match.go, walk.go), which finds the foreign rule that stops a packet. It gets them typed: those of
// the agent as they were written, those of other programs as kernel/iptables parsed them.
//
// May import: inet, kernel, model and view.
package explain
