// Package ipvsadm parses ipvsadm command lines and prints exactly the output of ipvsadm 1.31, including its oddities, because operators and
// scripts rely on that format. It is read-only: commands that change something are rejected.
//
// It is based on the documented grammar and the output of the packaged program, not on its source.
//
// A command line becomes a Request (grammar.go, options.go, scan.go); the caller reads the data for the request; the other
// files print it. The package uses no clock, files or network: names come from the caller. Half of the code is the grammar:
// scripts depend on which option combinations ipvsadm rejects, and with which message.
//
// May import: kernel, inet.
package ipvsadm
