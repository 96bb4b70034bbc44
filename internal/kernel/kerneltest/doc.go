// Package kerneltest provides a kernel for tests. Fake is a strict kernel in memory with fault injection. Conformance is a test suite that
// Fake and the running kernel both pass. If a bug slips past the fake, fix the fake first.
//
// The package is large because it models every kernel object that the agent writes, including its error cases, and tests each on both
// kernels.
//
// May import: the standard library, kernel, inet, and test libraries. Only tests import it.
package kerneltest
