// Package scoreboard lists the faults that a node's agent has to survive, and the test that measures each. Command cmd runs these
// tests, keeps one result per row in results, and writes docs/scoreboard.md.
//
// May import: e2e/conformance.
package scoreboard
