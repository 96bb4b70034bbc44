// Package conformance says which behaviours a Service proxy must have, which test proves each, and what the tests found.
//
// The rows are the behaviours that Kubernetes' own end-to-end tests exercise (1 to 142), and those that they miss (143 to 153).
// A test claims rows with Proves; Claims finds these calls in the sources, so that no list has to be kept beside them. The
// results of runs are kept in results.jsonl, and docs/conformance.md is rendered from all three: see cmd.
//
// May import: the standard library.
package conformance
