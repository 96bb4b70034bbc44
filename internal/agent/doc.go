// Package agent is the reconciliation loop: it waits, gathers changes, compiles, plans, applies and reports. It is the only clock and
// the only writer (I10). What to write is decided in compile and diff.
//
// Its parts are packages of their own, without I/O and without a clock: known (what is known of the kernel), schedule (when the kernel
// is read), slowstart, drain and flows. The log, the history of syncs, metrics and Events observe its reports. A snapshot holds the
// values that status and explain show.
//
// The loop itself is a tenth of the package. The rest is the steps of a sync, its report and log, the views for status and explain,
// and the commands plan and cleanup, which use the same steps.
//
// May import: its parts, compile, diff, kernel, inet, model, view, want, zap. Sources and the kernel arrive as interfaces.
package agent
