package kerneltest

import (
	"context"
	"net/netip"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Kernel is what the agent asks of a node's kernel.
type Kernel interface {
	// Read returns everything but the connection limits of destinations. On error the state is nil, never partial.
	Read(ctx context.Context) (*kernel.State, error)
	// HasDevice says whether kube-ipvs0 exists.
	HasDevice(ctx context.Context) (bool, error)
	// Lookup asks for virtual servers by key; the absent ones are missing in the answer.
	Lookup(ctx context.Context, keys []kernel.ServerKey) (map[kernel.ServerKey]kernel.ObservedServer, error)
	// Apply does the operations in order and answers each of them with nil or an error.
	Apply(ctx context.Context, ops []kernel.Op) []error
	// NodeAddresses are the usable addresses of the node's interfaces other than kube-ipvs0, sorted. On error it
	// returns none.
	NodeAddresses(ctx context.Context) ([]netip.Addr, error)
	// Schedulers reports which of these schedulers the kernel has, and loads their modules if it can. The result has no entry for one
	// that could not be checked.
	Schedulers(ctx context.Context, names []string) map[string]bool
	// FindOldRules returns what an earlier start left in the variant of iptables that the node no longer uses.
	FindOldRules(ctx context.Context) ([]kernel.OldRules, error)
	// EndFlows deletes the stale tracked connections of the protocols and returns how many it deleted.
	EndFlows(ctx context.Context, protocols []inet.Protocol, stale func(kernel.Flow) bool) (int, error)
}

// Admin is another writer of the same kernel: an operator with ipvsadm, ip, ipset and iptables, or another program.
// Fake implements it on itself, Commands with the real tools.
type Admin interface {
	AddServer(kernel.Server, ...kernel.Destination) error
	DelServer(kernel.ServerKey) error
	ClearServers() error
	CreateSet(kernel.Set) error
	FlushSet(name string) error
	DestroySet(name string) error
	DelDevice() error
	DelAddress(kernel.BoundAddress) error
	// FlushChain empties a chain, of ours or built in.
	FlushChain(inet.Family, kernel.ChainID) error
	// AppendRule adds a rule which is not ours to a chain.
	AppendRule(f inet.Family, c kernel.ChainID, args ...string) error
	SetSysctl(kernel.SysctlSetting) error
	SetTimeouts(kernel.Timeouts) error
	AddFlow(kernel.Flow) error
	// AddNodeAddress gives the node an address on an interface of its own, DelNodeAddress takes it away.
	AddNodeAddress(netip.Addr) error
	DelNodeAddress(netip.Addr) error
}

// Subject is one kernel under test, empty at first. It reads what SetPrefix, Chains and Sysctls name.
type Subject struct {
	Kernel
	Admin Admin
}

// Open makes a Subject which ends with the test.
type Open func(t *testing.T) Subject
