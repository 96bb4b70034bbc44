// Package ipvsadm parses ipvsadm command lines and prints exactly the output of ipvsadm 1.31, including its oddities,
// because operators and scripts rely on that format. It is read-only and rejects commands that change IPVS.
//
// The package is based on the documented grammar and the output of the packaged program, not on its source.
//
// The parser turns a command line into a Request (grammar.go, options.go, scan.go). The caller reads the data for the
// request, and the other files format it. The package uses no clock, files or network; the caller resolves names. The
// grammar is half of the code, because scripts depend on which option combinations ipvsadm rejects, and with which
// message.
//
// May import: kernel, inet.
package ipvsadm
