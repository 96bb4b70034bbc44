// Package ipvs reads and writes virtual servers and their destinations, over the generic netlink family IPVS.
//
// It has its own codec beside moby/ipvs. That library sends one request at a time, reads weights with 16 bits, may wait for
// ever, and reports success for everything when the kernel has no IPVS. Of it only numbers are used.
//
// What the kernel does not tell, this package cannot either: a dump of virtual servers has no mark of consistency, so with a
// second writer it can miss some. Absence in a Read is a hint; Lookup is the answer.
//
// May import: kernel, inet, nlbatch, moby/ipvs.
package ipvs
