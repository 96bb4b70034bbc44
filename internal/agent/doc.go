// Package agent is the reconciliation loop: it waits, gathers changes, compiles, plans, applies and reports. It has the only clock and is
// the only writer (I10). The packages compile and diff decide what to write.
//
// A sync has three steps, each a type that gets what it needs: reader (gather.go) reads facts, planner (planner.go) compiles them and compares
// the result with the known state of the kernel, and writer (writer.go) applies the plan. Four jobs run outside the loop: audits, checks, walks
// and oldRules. The subpackages do no I/O and have no clock. The log, the history of syncs, metrics and Events use only the reports. A snapshot
// has the values that status and explain show.
//
// May import: its subpackages, compile, diff, kernel, inet, model, view, want, zap. Sources and the kernel are interfaces.
package agent
