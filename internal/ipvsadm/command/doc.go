// Package command implements the read-only ipvsadm program. It reads IPVS and looks up names; package ipvsadm
// implements the grammar and the output format.
//
// May import: ipvsadm, kernel, kernel/ipvs.
package command
