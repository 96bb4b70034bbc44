// Package explain follows one packet through a node's kernel and says at each step which kernel object decides. If the packet does
// not arrive, it says why, and which wanted objects are missing.
//
// It is pure: the kernel, the agent's view (or none) and the question go in, steps come out. It evaluates the rules that the kernel
// has, not those that the agent wants, so it also shows what other programs do to the packet.
//
// Most of its size is an evaluator of iptables rules (match.go, walk.go): without it, explain could not find the foreign rule that
// stops a packet, which is what users ask it most.
//
// May import: inet, kernel, model and view.
package explain
