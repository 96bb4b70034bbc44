// Package command is the read-only ipvsadm program: it reads IPVS and looks up names for package ipvsadm, which contains the grammar and the format.
//
// May import: ipvsadm, kernel, kernel/ipvs.
package command
