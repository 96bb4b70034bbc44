// Package forward forwards TCP connections and UDP datagrams in user space. The agent uses it for node ports on
// loopback addresses, whose packets the kernel cannot send to another node (decision 10).
//
// On platforms that support splice, the kernel copies TCP data between the sockets.
//
// The project does not use an existing Go proxy, because the maintained ones, such as tcpproxy, forward only TCP.
//
// May import: the standard library. It depends on neither Services nor kernel objects.
package forward
