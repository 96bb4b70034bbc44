package explain

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Kernel is the state of the node's kernel. Parts that could not be read are empty and listed in Unread.
type Kernel struct {
	*kernel.State
	Rules map[inet.Family]kernel.RuleListing
	// Legacy are the rules of iptables-legacy on a node that uses iptables-nft. Packets also pass these rules.
	Legacy map[inet.Family]kernel.RuleListing
	// Mode is the agent's mode. If nftables balances, it rewrites packets before they are routed, and they bypass IPVS.
	Mode kernel.Mode
	// NodeAddresses are the addresses of all interfaces except kube-ipvs0.
	NodeAddresses []netip.Addr
	Connections   []kernel.Connection
	// MarkServers are the virtual servers for packets with a firewall mark. The agent creates none.
	MarkServers []kernel.TableServer
	// Chains are the native nftables base chains, ordered by priority. NFTables contains the rules and sets that they use.
	Chains   []kernel.BaseChain
	NFTables kernel.NFTables
	// OtherSets are other programs' ipsets, by name.
	OtherSets map[string]kernel.OtherSet
	// Indexes maps the names of the node's interfaces to their indexes.
	Indexes map[string]int
	// Routes are the routes of the node's own packets to clients, frontends and endpoints. Arrivals are the routes of clients' packets.
	Routes   map[netip.Addr]kernel.Route
	Arrivals map[Arrival]kernel.Route
	// Marks are the routing rules for marked packets.
	Marks []kernel.MarkRule
	// Unrouted are the addresses on kube-ipvs0, and the node's own addresses, without a local route.
	Unrouted []netip.Addr
	Bridges  []kernel.Bridge
	// Namespace is the network namespace with this state; empty if it is unknown.
	Namespace string
	Unread    map[Part]Unread
}

// Arrival identifies packets from a client to a frontend, or from an endpoint to a client. They have no mark, or a mark for which a routing
// rule exists. If From is not set, the node is forwarding the packets to an endpoint.
type Arrival struct {
	From, To netip.Addr
	Mark     uint32
}

// Part is a part of the kernel state that is read in one step.
type Part string

// The parts.
const (
	Addresses   Part = "addresses"
	Sets        Part = "sets"
	Rules       Part = "rules"
	Legacy      Part = "rules of iptables-legacy"
	Chains      Part = "nftables chains"
	Servers     Part = "virtual servers"
	Connections Part = "connections"
	Sysctls     Part = "sysctls"
	Routes      Part = "routes"
)

// Unread is the reason why a part could not be read.
type Unread struct {
	Why string
	// Absent is true if the kernel lacks this part altogether.
	Absent bool
}

// Question is a packet's source and destination.
type Question struct {
	To kernel.ServerKey
	// From is the client's address. An invalid address stands for any client.
	From netip.Addr
	// FromPort is the client's port. If IPVS tracks a connection from this port, explain traces it; 0 means a new
	// connection.
	FromPort uint16
	// Interface is the incoming interface. If it is empty, explain uses the interface of the route to the client.
	Interface string
}

// Verdict is the outcome of a step, or of the whole path.
type Verdict string

// The verdicts.
const (
	Passes  Verdict = "passes"
	Stops   Verdict = "stops"
	Partly  Verdict = "partly"  // reaches some endpoints and not others
	Unclear Verdict = "unclear" // depends on a rule that explain cannot evaluate
	Depends Verdict = "depends" // depends on the client
	Differs Verdict = "differs" // passes, but the kernel differs from the wanted state
	// NoService is the verdict if no Service on this node has the address: kube-ipvs does not affect the packet.
	NoService Verdict = "noService"
	Unknown   Verdict = "unknown" // too little kernel state could be read, or another proxy serves this frontend
)

// gravity lists the verdicts from most to least serious. Unknown precedes Partly, because what explain could not read may stop all packets.
var gravity = []Verdict{Stops, NoService, Unknown, Partly, Unclear, Depends, Differs, Passes}

// Compare orders verdicts from most to least serious. A verdict of another version comes first.
func (v Verdict) Compare(w Verdict) int {
	return cmp.Compare(slices.Index(gravity, v), slices.Index(gravity, w))
}

// Step is one decision.
type Step struct {
	// At is the stage in the kernel. Object is the deciding kernel object, as its tool prints it.
	At      string  `json:"at"`
	Object  string  `json:"object"`
	Message string  `json:"message"`
	Verdict Verdict `json:"verdict"`
}

// Endpoint is an endpoint that the packet may reach.
type Endpoint struct {
	Address netip.AddrPort `json:"address"`
	Pod     string         `json:"pod,omitempty"`
	Node    string         `json:"node,omitempty"`
	Weight  uint32         `json:"weight"`
	// Source is the source address that the endpoint sees: the client's or this node's.
	Source string `json:"source"`
}

// Cause is a reason with its effect.
type Cause struct {
	Text string
	// Verdict is the effect of this cause alone. If it is Passes, the text is a note.
	Verdict Verdict
	// Rules are the foreign rules or chains that the text names.
	Rules []string
	// Later is true if the cause affects only packets after the first one. The connection still opens.
	Later bool
}

// Explanation is the trace of one packet, with its verdict.
type Explanation struct {
	Address  netip.AddrPort `json:"address"`
	Protocol string         `json:"protocol"`
	From     string         `json:"from,omitempty"`
	// Connection is the client's address and port if the connection exists; empty for a new connection.
	Connection string `json:"connection,omitempty"`
	// Service and Kind are empty if they are unknown.
	Service string `json:"service,omitempty"`
	Kind    string `json:"kind,omitempty"`
	// Owner is the Service that owns the frontend, if it differs from Service.
	Owner   string  `json:"owner,omitempty"`
	Verdict Verdict `json:"verdict"`
	// Reasons explain why the packet does not arrive, or list differences from the wanted state. They are the texts of Causes.
	Reasons []string `json:"reasons"`
	Causes  []Cause  `json:"-"`
	Steps   []Step   `json:"steps"`
	// Endpoints are the endpoints eligible for a new connection.
	Endpoints []Endpoint `json:"endpoints"`
}
