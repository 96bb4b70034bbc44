package iptables

import "github.com/kube-ipvs/kube-ipvs/internal/inet"

// Variant is one of iptables' two kernel interfaces. Rules made through one are invisible through the other.
type Variant string

// The variants, as they appear in command names.
const (
	NFT    Variant = "nft"
	Legacy Variant = "legacy"
)

// command returns the name of an iptables command: command(IPv6, "-save") is ip6tables-nft-save.
func (v Variant) command(f inet.Family, suffix string) string {
	program := "iptables-"
	if f == inet.IPv6 {
		program = "ip6tables-"
	}
	return program + string(v) + suffix
}

// Other returns the other variant, which the host does not use.
func (v Variant) Other() Variant {
	if v == NFT {
		return Legacy
	}
	return NFT
}
