// Package explain follows one packet through a node's kernel, and says at each step which kernel object decides, as it is now.
// Where the packet does not arrive it says why, and what the agent wants that is not there.
//
// It is pure: the kernel, the agent's view (or none) and the question go in, steps come out. It judges by the rules that the
// kernel has, not by those that the agent wants, so it sees what other programs do to the packet, too.
//
// May import: inet, kernel, model and view.
package explain
