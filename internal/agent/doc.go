// Package agent is the reconciliation loop: it waits, gathers changes, compiles, plans, applies and reports. Only this
// package reads the clock, and only its loop writes to the kernel (I10). Packages compile and diff decide what to
// write.
//
// A sync has three steps, each with its own type: reader (gather.go) reads facts, planner (planner.go) compiles them
// and compares the result with the known state of the kernel, and writer (writer.go) applies the plan. Four jobs run
// outside the loop: audits, checks, walks and oldRules.
//
// May import: its subpackages, compile, diff, kernel, inet, model, view, want, zap. Sources and the kernel are
// interfaces.
package agent
