// Package agent is the loop that keeps the kernel as the cluster wants it: wait, compile, compare, apply, report. It is the
// only clock and the only writer (I10); what it decides is decided in compile and diff.
//
// May import: its own sub-packages, compile, diff, kernel, inet, model, view, want, zap. Sources and the kernel arrive as interfaces.
package agent
