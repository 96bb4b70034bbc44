// Package conformance lists the behaviors of a Service proxy, the tests that prove them, and the results.
//
// Rows 1 to 142 are behaviors that Kubernetes' own end-to-end tests exercise. Rows 143 to 153 are behaviors that
// those tests do not cover. A test claims rows with a comment such as "// proves: 33".
//
// May import: e2e/record.
package conformance
