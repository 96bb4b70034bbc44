// Package live is the running kernel of this node: the five backends behind the agent's Kernel interface. The package makes no decisions:
// it passes each operation to its backend and combines the backends' results into one state.
//
// May import: the standard library, kernel, inet, nlbatch and the backends.
package live
