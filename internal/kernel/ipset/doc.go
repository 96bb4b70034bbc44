// Package ipset reads and writes sets and their members through the nfnetlink subsystem ipset.
//
// Creating, swapping and destroying sets is rare and uses vishvananda/netlink. Members and listings have their own codec, which is most of
// this package: one message carries hundreds of members, and the kernel names the member that it rejects.
//
// May import: kernel, inet, nlbatch, vishvananda/netlink.
package ipset
