package kernel

import "github.com/kube-ipvs/kube-ipvs/internal/inet"

// Summary is the kernel state that can be read cheaply, however many Services exist. Nearly every change by another
// program also changes the summary, but only a full read shows what changed.
type Summary struct {
	// IPv4Servers counts the IPv4 virtual servers, including firewall-mark servers, or is Uncounted. The kernel does not count IPv6 ones.
	IPv4Servers int
	// Sets is nil if the members were not counted, because that is expensive. Members then contains the requested members that exist.
	Sets    map[string]SetSummary
	Members map[Member]struct{}
	// Rules contains an opaque value per family. The value changes if a rule in an owned chain changes, or a rule in a built-in chain up
	// to the last owned jump. With iptables-legacy, it also changes if the size of any chain changes.
	Rules   map[inet.Family]uint64
	Sysctls map[string]string
	// Servers contains the requested virtual servers that exist.
	Servers map[ServerKey]ObservedServer
	// Untouched is true if no other program has changed sets and rules since the previous summary, which then lacks them. ServersUntouched is
	// true if that also applies to virtual servers, which are then not counted.
	Untouched, ServersUntouched bool
}

// Sample contains objects that a summary shows in addition to what it counts.
type Sample struct {
	Servers []ServerKey
	Members []Member
	// All requests also what only the agent has changed since the last summary.
	All bool
	// Count requests the number of members of each set, even if the last summary that contained it was recent.
	Count bool
}

// SetSummary is a set and the number of its members.
type SetSummary struct {
	Set
	Members int
}

// Uncounted replaces the number of members or virtual servers if the kernel does not report it and counting would take too
// long.
const Uncounted = -1
