package kernel

import "github.com/kube-ipvs/kube-ipvs/internal/inet"

// Summary is what can be read of the kernel at a cost that does not depend on the number of Services. What another program changes nearly
// always changes a summary; only a full read says what it was.
type Summary struct {
	// IPv4Servers counts the virtual servers of IPv4, those by firewall mark included. The kernel does not count those of IPv6.
	IPv4Servers int
	// Sets are the owned sets, by name.
	Sets map[string]SetSummary
	// Rules has a value for each family, without meaning of its own. It changes with the rules of an owned chain, and with those of a
	// built-in chain up to the last owned jump. With iptables-legacy it changes with the size of any chain.
	Rules map[inet.Family]uint64
	// Sysctls as in State.
	Sysctls map[string]string
	// Servers are those asked for that exist.
	Servers map[ServerKey]ObservedServer
}

// SetSummary is a set and the number of its members.
type SetSummary struct {
	Set
	Members int
}
