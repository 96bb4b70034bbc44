// Package ipvsadm reads command lines of ipvsadm and prints what ipvsadm 1.31 prints, to the byte, oddities included: people and
// scripts know that format. It is read-only: commands that change something are rejected.
//
// It was made from the documented grammar and from the output of the packaged program, not from its source.
//
// A command line becomes a Request (grammar.go, options.go, scan.go); the caller reads what the request needs; the other
// files print it. No clock, no files, no network: names come from the caller. Half of the size is the grammar: scripts depend on
// which option combinations ipvsadm rejects, and with which message.
//
// May import: kernel, inet.
package ipvsadm
