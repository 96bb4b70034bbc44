package explain

import (
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Kernel is all that was read of the node's kernel. What could not be read is empty, and named in Unread.
type Kernel struct {
	*kernel.State
	Rules map[inet.Family]kernel.RuleListing
	// NodeAddresses are those of the interfaces other than kube-ipvs0.
	NodeAddresses []netip.Addr
	Connections   []kernel.Connection
	// Chains are nftables' own, by priority. Their rules are not read.
	Chains []kernel.BaseChain
	// Via names the interfaces by which the node reaches the client and the endpoints.
	Via    map[netip.Addr]string
	Unread map[Part]Unread
}

// Part of a kernel, as it is read.
type Part string

// The parts.
const (
	Addresses   Part = "addresses"
	Sets        Part = "ipsets"
	Rules       Part = "rules of iptables"
	Chains      Part = "chains of nftables' own"
	Servers     Part = "virtual servers"
	Connections Part = "connections"
	Sysctls     Part = "sysctls"
)

// Unread is why a part could not be read.
type Unread struct {
	Why string
	// Absent says that the kernel does not have this part at all.
	Absent bool
}

// Question is where a packet goes, and from where.
type Question struct {
	To kernel.ServerKey
	// From is the client. Without one, what depends on it is told for all.
	From netip.Addr
	// FromPort is its port. With it, a connection that exists is followed; 0 stands for a new connection.
	FromPort uint16
	// Interface is where the packet arrives; empty for the one that leads back to the client.
	Interface string
}

// Verdict is what becomes of the packet at one step, and in the end.
type Verdict string

// The verdicts.
const (
	Passes  Verdict = "passes"
	Stops   Verdict = "stops"
	Depends Verdict = "depends" // on the client, or on a match that is not understood
	Unknown Verdict = "unknown" // too little of the kernel could be read, or another proxy serves here
)

// Step is one decision.
type Step struct {
	// At is where in the kernel it falls, Object what decides there, in the words of the tool that shows it.
	At      string  `json:"at"`
	Object  string  `json:"object"`
	Says    string  `json:"says"`
	Verdict Verdict `json:"verdict"`
}

// Endpoint is one to which the packet may go.
type Endpoint struct {
	Address netip.AddrPort `json:"address"`
	Pod     string         `json:"pod,omitempty"`
	Node    string         `json:"node,omitempty"`
	Weight  uint32         `json:"weight"`
	// Source is whose address it sees.
	Source string `json:"source"`
}

// Explanation is the answer.
type Explanation struct {
	Address  netip.AddrPort `json:"address"`
	Protocol string         `json:"protocol"`
	From     string         `json:"from,omitempty"`
	// Connection is the client's end of a connection that exists and was asked about; empty for a new one.
	Connection string `json:"connection,omitempty"`
	// Service and Kind are empty where nobody knows them.
	Service string  `json:"service,omitempty"`
	Kind    string  `json:"kind,omitempty"`
	Verdict Verdict `json:"verdict"`
	// Reasons say why it does not work, or what is not as the agent wants it.
	Reasons []string `json:"reasons"`
	Steps   []Step   `json:"steps"`
	// Endpoints are those that a new connection may get.
	Endpoints []Endpoint `json:"endpoints"`
}
