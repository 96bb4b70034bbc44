// Package foreign reads the nftables tables of other programs, for explain.
//
// It decodes rules as the kernel lists them. What it does not know becomes a kernel.NFTOpaque, or an action with the kernel's name for it, so
// that whoever evaluates the rules knows that he does not know.
//
// May import: inet, kernel, kernel/nlbatch and x/sys/unix.
package foreign
