// Package netdev is the backend for kube-ipvs0, the addresses on it, and sysctls.
//
// The device stays down: an address of a dummy that is down is local like any other, and no routing daemon announces it.
// Requests for addresses travel in batches, because ten thousand of them one by one take seconds.
//
// May import: the standard library, kernel, inet, nlbatch, vishvananda/netlink and golang.org/x/sys/unix.
package netdev
