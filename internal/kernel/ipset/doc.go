// Package ipset reads and writes sets and their members through the nfnetlink subsystem ipset.
//
// The package uses vishvananda/netlink to create, swap and destroy sets, which is rare. Most of the package is a codec for members and
// listings. It packs hundreds of members into one message, and the kernel reports which member it rejects.
//
// May import: kernel, inet, nlbatch, vishvananda/netlink.
package ipset
