// Package kerneltest is a node's kernel for tests: Fake, strict and faulty, and Conformance, the suite which the fake and
// the running kernel both have to pass. A bug that the fake allowed is fixed in the fake first.
//
// May import: the standard library, kernel, inet, and test libraries. Only tests import it.
package kerneltest
