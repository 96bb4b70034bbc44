// Package sockets is the kernel of an agent that balances in its own process (decision 13). It implements the agent's
// interface, so the loop, the plans and the repairs are the same as on the other data planes:
//
//   - kernel.go implements the interface, and passes each operation to the part that it concerns.
//   - table.go keeps virtual servers and sets in memory. Virtual servers are listeners of a forwarder.
//   - serve.go opens and closes the listeners, and limits them to the clients that the sets admit. No rules read the sets.
//   - namespace.go is the network namespace in which the agent listens at virtual addresses. Packets to ports without a
//     listener are refused there, and no daemon of the node listens there.
//   - link.go is kube-ipvs0, which leads to that namespace, and the routes to it: one for each virtual address.
//
// Node ports are listeners on the node itself. When the process ends, the kernel removes the namespace, and with it
// kube-ipvs0 and the routes.
//
// May import: kernel, kernel/netdev, kernel/ownthread, forward, forward/virtual, inet, vishvananda/netlink, x/sys/unix.
package sockets
