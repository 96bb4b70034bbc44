// Package live reads and writes the running kernel of this node. It passes each operation to one of five backends, and combines what they
// read into one state.
//
// May import: the standard library, kernel, inet, nlbatch, ownthread and the backends.
package live
