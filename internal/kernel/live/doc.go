// Package live is the running kernel of this node: the five backends behind the one interface that the agent knows. It decides
// nothing; it sends each operation to its backend and puts what they read into one state.
//
// May import: the standard library, kernel, inet, nlbatch and the backends.
package live
