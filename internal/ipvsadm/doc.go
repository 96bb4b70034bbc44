// Package ipvsadm reads command lines of ipvsadm and prints what ipvsadm 1.31 prints, to the byte, oddities included: people and
// scripts know that format. It only looks: commands that change something are refused.
//
// It was made from the documented grammar and from the output of the packaged program, not from its source.
//
// A command line becomes a Request (grammar.go, options.go, scan.go); what the request needs is read elsewhere; the other files
// turn it into text. No clock, no files, no network: names come from the caller.
//
// May import: kernel, inet, kernel/ipvs (for its values).
package ipvsadm
