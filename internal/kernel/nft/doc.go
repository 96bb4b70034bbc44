// Package nft keeps the agent's sets and rules in nftables, in one table of its own. It writes and reads by netlink alone: no program
// needs to be installed, and none of another version is asked to read what a newer one wrote.
//
// Everything in the table is the agent's (I5). The names in it are those of ipset and iptables: a set has its own, and chain
// KUBE-SERVICES of table nat is chain nat-KUBE-SERVICES-4 for IPv4. A built-in chain of iptables is a base chain here.
//
// May import: the standard library, kernel, inet, nlbatch and golang.org/x/sys/unix.
package nft
