// Package ipvs reads and writes virtual servers and their destinations, over the generic netlink family IPVS.
//
// It has its own codec, and uses moby/ipvs only for its constants. That library sends one request at a time, reads weights as 16 bits, may
// wait forever, and reports success for everything if the kernel has no IPVS (docs/decisions/0002-libraries.md).
//
// The kernel does not mark an inconsistent dump of virtual servers, so a Read concurrent with another writer can miss virtual servers. A
// server that Read does not return may still exist; Lookup is exact.
//
// May import: kernel, inet, nlbatch, moby/ipvs.
package ipvs
