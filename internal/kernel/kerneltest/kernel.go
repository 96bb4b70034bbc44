package kerneltest

import (
	"context"
	"net/netip"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Kernel is the agent's interface to a node's kernel.
type Kernel interface {
	// Read returns everything except the connection limits of destinations. On error the state is nil, never partial.
	Read(ctx context.Context) (*kernel.State, error)
	// Audit reads the kernel as Read does. It returns the differences from the previous audit and the parts that the request names. After
	// an error, the next audit returns everything. Unlike most other methods, it may be called while another method runs.
	Audit(ctx context.Context, asked kernel.Audit) (*kernel.Differences, error)
	// Summarize reads a summary that includes these virtual servers. Like Audit, it may be called while other methods run.
	Summarize(ctx context.Context, sample kernel.Sample) (*kernel.Summary, error)
	// HasDevice reports whether kube-ipvs0 exists.
	HasDevice(ctx context.Context) (bool, error)
	// Lookup returns the given virtual servers that exist.
	Lookup(ctx context.Context, keys []kernel.ServerKey) (map[kernel.ServerKey]kernel.ObservedServer, error)
	// LookupMembers returns the given members that exist.
	LookupMembers(ctx context.Context, members []kernel.Member) (map[kernel.Member]struct{}, error)
	// Apply tries every operation in order and returns one result per operation: an error or nil.
	Apply(ctx context.Context, ops []kernel.Op) []error
	// NodeAddresses returns the usable addresses of the node's interfaces other than kube-ipvs0, sorted.
	NodeAddresses(ctx context.Context) ([]netip.Addr, error)
	// Network returns the gateways of the node's routes and the first and broadcast addresses of its subnets.
	Network(ctx context.Context) (kernel.Network, error)
	// Listeners returns the sockets on which the node's processes receive packets.
	Listeners(ctx context.Context) (kernel.Listeners, error)
	// Schedulers reports which of these schedulers are available, and loads their modules if possible. Schedulers that it could not
	// check are absent from the result.
	Schedulers(ctx context.Context, names []string) map[string]bool
	// FindOldRules returns rules that a previous run of the agent left behind in the other iptables variant.
	FindOldRules(ctx context.Context) ([]kernel.OldRules, error)
	// EndFlows deletes stale tracked connections of these protocols and returns their number. It deletes a TCP connection only if it is
	// unanswered. Like Audit, it may be called while another method runs.
	EndFlows(ctx context.Context, protocols []inet.Protocol, stale func(kernel.Flow) bool) (int, error)
}

// Admin changes the kernel as an operator does with ipvsadm, ip, ipset and iptables. Commands runs these tools; Fake needs none.
type Admin interface {
	AddServer(kernel.Server, ...kernel.Destination) error
	DelServer(kernel.ServerKey) error
	ClearServers() error
	CreateSet(kernel.Set) error
	FlushSet(name string) error
	DestroySet(name string) error
	DelDevice() error
	DelAddress(kernel.BoundAddress) error
	// FlushChain empties one of our chains or a built-in chain.
	FlushChain(inet.Family, kernel.ChainID) error
	// AppendRule adds a foreign rule to a chain.
	AppendRule(f inet.Family, c kernel.ChainID, args ...string) error
	// InsertRule adds a foreign rule at the top of a chain.
	InsertRule(f inet.Family, c kernel.ChainID, args ...string) error
	SetSysctl(kernel.SysctlSetting) error
	SetTimeouts(kernel.Timeouts) error
	AddFlow(kernel.Flow) error
	// AddNodeAddress adds an address to an interface of the node, and DelNodeAddress removes it.
	AddNodeAddress(netip.Addr) error
	DelNodeAddress(netip.Addr) error
}

// Subject is a kernel under test, initially empty. It reads the objects that SetPrefix, Chains and Sysctls select.
type Subject struct {
	Kernel
	Admin Admin
	// OwnTable is true if sets and rules are in the agent's own nftables table. Other programs add no rules there, and the ranges of a set
	// are not nested.
	OwnTable bool
	// Balanced is true if virtual servers are also in that table. Other programs have no virtual servers there, and there are no IPVS
	// timeouts.
	Balanced bool
}

// Open creates a Subject that is closed when the test ends.
type Open func(t *testing.T) Subject
