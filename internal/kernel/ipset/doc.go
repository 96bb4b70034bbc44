// Package ipset reads and writes sets and their members, over the nfnetlink subsystem ipset.
//
// Sets are made, swapped and destroyed through vishvananda/netlink, which is rare. Members and listings have a codec of their own:
// one message carries hundreds of members, and the kernel names the one it refused.
//
// May import: kernel, inet, nlbatch, vishvananda/netlink.
package ipset
