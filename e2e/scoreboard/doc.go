// Package scoreboard lists the faults that a node's agent must survive, and the tests that measure them. Page renders
// docs/scoreboard.md from the record of the long tests.
//
// May import: e2e/conformance, e2e/record.
package scoreboard
