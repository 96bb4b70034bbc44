// Package netdev is the backend for kube-ipvs0, the addresses on it, and sysctls.
//
// The device stays down: an address of a dummy device that is down is as local as any other, and no routing daemon announces it. Requests
// for addresses are sent in batches, because sending ten thousand separate requests takes seconds.
//
// The package is large because it contains four small backends: the device with its addresses, the node's own addresses and routes, sysctls,
// and notifications of changes.
//
// May import: the standard library, kernel, inet, nlbatch, vishvananda/netlink and golang.org/x/sys/unix.
package netdev
