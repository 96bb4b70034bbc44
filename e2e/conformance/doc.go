// Package conformance says which behaviours a Service proxy must have, which test proves each, and what the tests found.
//
// The rows are the behaviours that Kubernetes' own end-to-end tests exercise (1 to 142), and those that they miss (143 to 153).
// A test claims rows with a comment such as "// proves: 33"; FindClaims reads these, so that no list is kept beside the tests. The
// lab records how every test ended; what that says about the rows is kept in results.jsonl. docs/conformance.md is rendered from
// rows, claims and results: see cmd.
//
// May import: the standard library.
package conformance
