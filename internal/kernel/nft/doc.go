// Package nft keeps the agent's sets and rules in one nftables table. It uses only netlink, so no program needs to be installed, and an
// older nft never has to read what a newer nft wrote.
//
// Everything in the table is the agent's (I5). Sets have the same names as in ipset. Chains are named after the chains of
// iptables: KUBE-SERVICES of table nat is nat-KUBE-SERVICES-4 for IPv4. Each built-in chain of iptables corresponds to a
// base chain.
//
// May import: the standard library, kernel, inet, nlbatch, wire, balance and golang.org/x/sys/unix.
package nft
