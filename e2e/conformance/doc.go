// Package conformance lists the behaviors that a Service proxy must have, the test that proves each, and the results.
//
// Rows 1 to 142 are behaviors that Kubernetes' own end-to-end tests exercise. Rows 143 to 153 are behaviors that those
// tests do not cover. A test claims rows with a comment such as "// proves: 33". FindClaims reads these comments, so
// there is no separate list to maintain. Page renders docs/conformance.md from rows, claims and the record of the long
// tests.
//
// May import: e2e/record.
package conformance
