package kernel

import "github.com/kube-ipvs/kube-ipvs/internal/inet"

// Summary contains what can be read from the kernel at a cost independent of the number of Services. Nearly every
// change by another program changes the summary. Only a full read shows what changed.
type Summary struct {
	// IPv4Servers counts the IPv4 virtual servers, including firewall-mark servers. The kernel does not count IPv6 ones.
	IPv4Servers int
	Sets        map[string]SetSummary
	// Rules contains an opaque value per family. The value changes with the rules of an owned chain, and with a built-in chain's rules up
	// to the last owned jump. With iptables-legacy it changes with the size of any chain.
	Rules   map[inet.Family]uint64
	Sysctls map[string]string
	// Servers are the requested virtual servers that exist.
	Servers map[ServerKey]ObservedServer
}

// SetSummary is a set and the number of its members.
type SetSummary struct {
	Set
	Members int
}

// Uncounted replaces the number of members or virtual servers if the kernel does not report it and counting takes too long.
const Uncounted = -1
