// Package netdev is the backend for kube-ipvs0, the addresses on it, and sysctls.
//
// The device stays down: an address of a dummy device that is down is as local as any other, and no routing daemon announces it. Requests
// for addresses are sent in batches, because sending ten thousand separate requests takes seconds.
//
// May import: the standard library, kernel, inet, nlbatch, vishvananda/netlink and golang.org/x/sys/unix.
package netdev
