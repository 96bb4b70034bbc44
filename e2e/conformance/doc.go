// Package conformance lists the behaviors that a Service proxy must have, the test that proves each, and the results.
//
// Rows 1 to 142 are the behaviors that Kubernetes' own end-to-end tests exercise; rows 143 to 153 are behaviors that these
// tests miss. A test claims rows with a comment such as "// proves: 33". FindClaims reads these comments, so no separate list
// can go out of date. Page renders docs/conformance.md from rows, claims and the record of the long tests.
//
// May import: e2e/record.
package conformance
