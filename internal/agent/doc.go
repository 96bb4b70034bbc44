// Package agent is the reconciliation loop: it waits, gathers changes, compiles, plans, applies and reports. It has the only clock and is
// the only writer (I10). The packages compile and diff decide what to write.
//
// Its subpackages do no I/O and have no clock: known (the known state of the kernel), schedule (when the kernel is read), slowstart, drain
// and flows. The log, the history of syncs, metrics and Events use only its reports. A snapshot holds the values that status and explain
// show.
//
// The loop itself is a tenth of the package. The rest is the steps of a sync, its report and log, the views for status and explain, and the
// commands plan and cleanup, which use the same steps.
//
// May import: its subpackages, compile, diff, kernel, inet, model, view, want, zap. Sources and the kernel are interfaces.
package agent
