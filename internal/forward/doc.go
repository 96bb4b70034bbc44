// Package forward forwards TCP connections and UDP datagrams in user space. It listens at an address and port, opens a connection
// to another one for each client, and copies data in both directions. The agent uses it for node ports on loopback addresses, whose packets
// the kernel cannot send to another node (decision 10).
//
// Everything has a limit: connections, flows, and the time to connect. Where the platform supports it, the kernel
// copies the data of TCP connections (splice).
//
// It is written by hand because the maintained Go proxies, such as tcpproxy, forward only TCP.
//
// May import: the standard library. It knows neither Services nor the kernel's objects.
package forward
