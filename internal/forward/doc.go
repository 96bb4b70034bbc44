// Package forward forwards TCP connections and UDP datagrams in user space. Node ports at loopback addresses use it,
// because the kernel cannot send their packets to another node (decision 10), and so does the data plane in user space
// (decision 13).
//
// On Linux, the kernel copies TCP data between the sockets (splice), and the package counts each piece. Sums of what was forwarded
// are counters, so reading them visits no connection.
//
// The project does not use an existing Go proxy, because the maintained ones, such as tcpproxy, forward only TCP.
//
// May import: the standard library, and x/sys/unix for splice and the kernel's counters. It depends on neither Services nor kernel objects.
package forward
