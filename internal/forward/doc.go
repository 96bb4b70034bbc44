// Package forward forwards TCP connections and UDP datagrams in user space. It listens on an address and port, connects
// each client to another address and port, and copies data in both directions. The agent uses it for node ports on
// loopback addresses, whose packets the kernel cannot send to another node (decision 10).
//
// Connections, flows and the time to connect are limited. Where the platform supports it, the kernel copies the data of
// TCP connections (splice).
//
// The project has its own forwarder because the maintained Go proxies, such as tcpproxy, forward only TCP.
//
// May import: the standard library. It depends on neither Services nor kernel objects.
package forward
