// Package command is ipvsadm's read side as a program: it reads IPVS and looks up names for package ipvsadm, which knows the
// grammar and the format.
//
// May import: ipvsadm, kernel, kernel/ipvs.
package command
