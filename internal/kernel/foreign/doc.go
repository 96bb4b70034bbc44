// Package foreign reads other programs' nftables tables for explain.
//
// An unknown expression becomes a kernel.NFTOpaque, or an action with its kernel name, so that explain reports it as
// unknown.
//
// May import: inet, kernel, kernel/nft/wire, kernel/nlbatch and x/sys/unix.
package foreign
