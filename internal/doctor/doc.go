// Package doctor judges a node: from facts that were read once it derives findings, and one verdict.
//
// Host is all that a check may ask of the machine, so a test can break one thing at a time. What preflight finds is part of it.
//
// May import: the standard library without I/O, inet, kernel, model, preflight and view.
package doctor
