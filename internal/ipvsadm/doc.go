// Package ipvsadm parses ipvsadm command lines and prints exactly the output of ipvsadm 1.31, including its oddities,
// because operators and scripts rely on that format. It is read-only and rejects commands that change IPVS.
//
// The package is based on the documented grammar and the output of the packaged program, not on its source.
//
// The grammar is half of the code, because scripts depend on which option combinations ipvsadm rejects, and on its
// messages.
//
// May import: kernel, inet.
package ipvsadm
