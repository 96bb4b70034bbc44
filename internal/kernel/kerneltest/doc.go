// Package kerneltest provides a kernel for tests. Fake is a strict kernel in memory with fault injection. Conformance is a test suite
// that Fake and the running kernel both pass. If a bug got past the fake, fix the fake first.
//
// It is large because it models every object of the kernel that the agent writes, with its error cases, and tests each on both kernels.
//
// May import: the standard library, kernel, inet, and test libraries. Only tests import it.
package kerneltest
