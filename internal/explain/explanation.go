package explain

import (
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/ipvs"
)

// Kernel is all that was read of the node's kernel.
type Kernel struct {
	*kernel.State
	Rules map[inet.Family]iptables.Listing
	// NodeAddresses are those of the interfaces other than kube-ipvs0.
	NodeAddresses []netip.Addr
	Connections   []ipvs.Connection
}

// Question is where a packet goes, and from where.
type Question struct {
	To kernel.ServerKey
	// From is the client. Without one, what depends on it is told for all.
	From netip.Addr
}

// Verdict is what becomes of the packet at one step, and in the end.
type Verdict string

// The verdicts.
const (
	Passes  Verdict = "passes"
	Stops   Verdict = "stops"
	Depends Verdict = "depends" // on the client, or on a match that is not understood
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
