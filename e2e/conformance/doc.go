// Package conformance lists the behaviors that a Service proxy must have, the test that proves each, and the results.
//
// Rows 1 to 142 are the behaviors that Kubernetes' own end-to-end tests exercise; rows 143 to 153 are behaviors they miss. A
// test claims rows with a comment such as "// proves: 33". FindClaims reads these comments, so no separate list can go out of
// date. The lab records the result of every test, and results.jsonl keeps the results by row. Command cmd renders
// docs/conformance.md from rows, claims and results.
//
// May import: the standard library.
package conformance
