// Package forward passes TCP connections and UDP datagrams on in user space: it listens at an address and port, chooses an endpoint for each
// new client, and copies. It serves node ports on loopback addresses, where no packet can be rewritten to leave the node, and whole
// Services on machines whose kernel balances nothing.
//
// Everything is bounded: connections, flows, remembered clients, and the time to connect. Where the platform can, the kernel copies the
// bytes of TCP connections (splice), and this process sees only their ends.
//
// It is written by hand because the well-kept proxies in Go (for example tcpproxy) forward TCP alone, and none has weights, affinity
// and replaceable endpoints.
//
// May import: the standard library. It knows neither Services nor the kernel's objects.
package forward
