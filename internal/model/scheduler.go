package model

import "slices"

// Schedulers are the names of every scheduler that some kernel has, in the order of the kernel's own menu. A kernel module
// ip_vs_<name> goes with each; whether this node has it is seen when it is first used.
var Schedulers = []string{
	"rr", "wrr", "lc", "wlc", "fo", "ovf", "lblc", "lblcr", "dh", "sh", "mh", "sed", "nq", "twos",
}

// KnownScheduler says whether the name is one of Schedulers.
func KnownScheduler(name string) bool { return slices.Contains(Schedulers, name) }
