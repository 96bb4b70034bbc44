// Package balance keeps virtual servers in maps and chains of the agent's nftables table, for kernels without IPVS. Package nft sends
// packets to balance's entrance, and repairs the base chains of both packages.
//
// May import: the standard library, kernel, inet, nlbatch, wire and golang.org/x/sys/unix.
package balance
