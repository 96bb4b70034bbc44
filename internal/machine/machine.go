// Package machine reads the state of the machine for commands: the parts of the kernel that can affect a packet, the files
// that doctor examines, and whether a kube-proxy might be running. If one part cannot be read, the package still reads the
// others. It joins this state with the agent's view, and plans what cleanup removes.
//
// May import: the packages that it reads and combines, zap and x/sys/unix.
package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/daemon"
	"github.com/kube-ipvs/kube-ipvs/internal/doctor"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/ipvs"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/live"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/sockets"
	"github.com/kube-ipvs/kube-ipvs/internal/nodelock"
	"github.com/kube-ipvs/kube-ipvs/internal/preflight"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Machine gives commands access to the machine that they run on. Tests replace it.
type Machine struct {
	daemon.Machine
	// TryLock acquires the node lock, which prevents agents from starting until release is called.
	TryLock func() (release func(), err error)
	// Kernel reads the kernel for inspection. The result includes the read errors of each part.
	Kernel func(context.Context, Look) *explain.Kernel
	Counts func(ctx context.Context, socket string) (inspect.Counts, error)
	// Flows calls take for each new or ended connection until ctx ends.
	Flows   func(ctx context.Context, take func(kernel.FlowEvent), lost func()) error
	Release func() string
	Host    func(context.Context) doctor.Host
	// ProxyModes and ProxyHealth are the URLs of kube-proxy's mode and health. ProxyPatience is the timeout for
	// requests to them.
	ProxyModes    []string
	ProxyHealth   []string
	ProxyPatience time.Duration
	// Metrics returns the response of a metrics server. AgentLog writes the end of the agent's log.
	Metrics  func(ctx context.Context, url string) (status int, body string, err error)
	AgentLog func(context.Context, io.Writer) error
	Connect  func(context.Context, netip.AddrPort) error
	// Measure sends test packets to an endpoint on another node.
	Measure func(context.Context, *doctor.Echo)
	// Probe sends ARP requests for an address of this node.
	Probe func(*doctor.Probed) error
	// FindProcess returns the ID of a process with this name, or "" if there is none. If unsure is true, processes
	// whose network namespace is unknown also match.
	FindProcess func(name string, unsure bool) (id string)
	// Link is the kube-ipvs0 of an agent in user space.
	Link Link
	// LastDataPlane is the setting of the node's agent, also after it has ended; "" if it is unknown.
	LastDataPlane func() string
}

// Link gives access to kube-ipvs0 if an agent in user space created it.
type Link struct {
	Exists func() (bool, error)
	Remove func() error
}

// This returns the machine that the process runs on.
func This() *Machine {
	return &Machine{
		Machine: daemon.ThisMachine(), TryLock: takeNodeLock, Kernel: readKernel, Counts: readCounts, Flows: watchFlows, Release: daemon.KernelRelease,
		Host:       func(ctx context.Context) doctor.Host { return thisHost{ctx} },
		ProxyModes: proxyModeURLs, ProxyHealth: proxyHealthURLs, ProxyPatience: proxyPatience, FindProcess: findProcess,
		Link: Link{sockets.Exists, sockets.Remove}, LastDataPlane: nodelock.LastDataPlane,
		Connect: connectTo, Measure: measure, Probe: probe, AgentLog: agentLog,
		Metrics: func(ctx context.Context, url string) (int, string, error) {
			return get(ctx, url, maxMetrics, metricsPatience)
		},
	}
}

func takeNodeLock() (release func(), err error) {
	lock, err := nodelock.TryAcquire()
	if err != nil {
		return nil, err
	}
	return func() { _ = lock.Release() }, nil
}

func readCounts(ctx context.Context, socket string) (inspect.Counts, error) {
	if inProcess() {
		return countsOfProcess(ctx, socket, errInProcess)
	}
	if live.FindMode(ctx).NFTablesBalances() {
		return nil, errors.New("nftables balances connections on this node and has no counters for Services; `kube-ipvs conns` lists connections")
	}
	return readUsing(ipvs.New, func(b *ipvs.Backend) (inspect.Counts, error) { return b.Traffic(ctx, true) })
}

// plainBase returns the wanted state without Services, for the default configuration or for an agent that runs
// alongside another proxy. Other configurations differ only in some rules.
func plainBase(mode kernel.Mode, beside bool) want.Base {
	return compile.Base(compile.Config{Host: compile.Host{Families: inet.Families, Mode: mode}, Settings: compile.Settings{SideBySide: beside}})
}

// baseOf returns the agent's wanted state without Services, or the default one if no agent responds.
func baseOf(v *view.View) view.Base {
	if v != nil {
		return v.Base
	}
	return view.BaseOf(plainBase(kernel.IPVSWithIPTables, false), 0)
}

// agentRules returns the rulesets of an agent that uses iptables, except for the rules that depend on the cluster. If
// no agent responds, v is nil and agentRules assumes the default configuration.
func agentRules(v *view.View) (all []kernel.Ruleset) {
	cfg := compile.Config{Host: compile.Host{Families: inet.Families}, Settings: settingsOf(v).Compile()}
	for _, cfg.SideBySide = range []bool{cfg.SideBySide, true} {
		all = append(all, compile.Base(cfg).Rulesets...)
	}
	return all
}

// Explain traces a client's packets to the subject of a query. The view is older than the kernel state that Explain
// reads, so the wanted state is never newer than the kernel state. v is nil if no agent responds.
func (m *Machine) Explain(ctx context.Context, query explain.Query, client explain.Question, v *view.View) ([]explain.Explanation, error) {
	base := baseOf(v)
	var clients []netip.Addr
	if client.From.IsValid() {
		clients = append(clients, client.From)
	}
	k := m.Kernel(ctx, Look{Clients: clients, Interface: client.Interface, Concerns: query.Concerns(v), Sysctls: base.Sysctls, Ours: agentRules(v)})
	if k.Mode == kernel.Userspace {
		return nil, fmt.Errorf("%w, so there is no path to explain; run `kube-ipvs services` to see what it serves, and `kube-ipvs conns` "+
			"to see its connections and the affinity of its clients", errInProcess)
	}
	if v == nil {
		base = closestBase(k)
	}
	return query.Explain(k, v, base, client)
}

// closestBase guesses from the rules on this node which kind of agent wrote them. It is used if no agent responds.
func closestBase(k *explain.Kernel) view.Base {
	return k.Closest(view.BaseOf(plainBase(k.Mode, false), 0).JumpsOnly(), view.BaseOf(plainBase(k.Mode, true), 0).JumpsOnly())
}

// Facts reads the input for doctor. If no agent responds, settings come from the flags. If connect is true, the node connects to
// some Services.
func (m *Machine) Facts(ctx context.Context, a Agent, settings *config.Settings, connect bool) doctor.Facts {
	v := a.View
	facts := doctor.Facts{Now: time.Now(), View: v, Release: m.Release(), Namespace: daemon.NetworkNamespace()}
	if v.Elsewhere(facts.Namespace) != "" {
		return facts
	}
	var found preflight.Result
	if v == nil {
		facts.Silence, facts.Holder = a.Silence.Error(), nodelock.Holder()
		found = m.Preflight(ctx, settings)
	} else {
		facts.Now = v.Time
		found = m.Check(ctx, facts.Needs())
	}
	facts.Preflight, facts.Mode, facts.Variant = found.Findings, found.Mode, string(found.IPTables.Variant)
	look := Look{Parts: []explain.Part{explain.Servers, explain.Sets, explain.Rules, explain.Addresses, explain.Connections}, Tables: found.IPTables}
	k := m.follow(ctx, a, look, &facts)
	host := m.Host(ctx)
	facts.Routes = k.Routes
	if connect {
		facts.ReadNetwork(host)
		facts.Count(host)
		m.connect(ctx, &facts)
		facts.Count(host)
	}
	facts.Unrouted, facts.Outsiders = k.Unrouted, doctor.OutsidersOf(k)
	facts.Rules, facts.Legacy, facts.Chains, facts.VirtualServers = k.Rules, k.Legacy, k.Chains, len(k.Servers)
	for key, s := range k.Servers {
		if key.Family() == inet.IPv6 {
			facts.IPv6Servers++
		}
		if port := key.Addr.Port(); port != 0 && slices.Contains(k.NodeAddresses, key.Addr.Addr()) && !slices.Contains(facts.NodePorts, port) {
			facts.NodePorts = append(facts.NodePorts, port)
		}
		facts.Destinations += len(s.Destinations)
		for _, d := range s.Destinations {
			facts.Connections += uint64(d.Stats.Active) + uint64(d.Stats.Inactive)
		}
	}
	slices.Sort(facts.NodePorts)
	if k.Unread[explain.Servers].Absent && facts.Mode.NFTablesBalances() {
		delete(k.Unread, explain.Servers) // no agent has run yet, and a new agent would not need IPVS
	}
	for _, part := range slices.Sorted(maps.Keys(k.Unread)) {
		facts.Unread = append(facts.Unread, fmt.Sprintf("%s: %s", part, k.Unread[part].Why))
	}
	facts.Read(host)
	return facts
}
