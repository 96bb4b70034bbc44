// Package balance keeps virtual servers in maps and chains of the agent's nftables table, for kernels without IPVS. Package nft sends
// packets to its entrance, and repairs its base chains with its own.
//
// May import: the standard library, kernel, inet, nlbatch, wire and golang.org/x/sys/unix.
package balance
