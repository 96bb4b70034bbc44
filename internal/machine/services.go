package machine

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/daemon"
	"github.com/kube-ipvs/kube-ipvs/internal/doctor"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// table reads the virtual servers and their owner records. ours reports whether a virtual server has an owner
// record. unread is the reason for a failure; empty on success.
func (m *Machine) table(ctx context.Context, socket string) (k *explain.Kernel, ours func(kernel.ServerKey) bool, unread string) {
	counts := tally{}
	k = m.kernelOrProcess(ctx, Look{Parts: []explain.Part{explain.Servers, explain.Sets}, Tracked: counts.add, Socket: socket})
	if k.Mode == kernel.Userspace { // all virtual servers are the agent's, and it has no sets
		return k, func(kernel.ServerKey) bool { return true }, k.Unread[explain.Servers].Why
	}
	counts.store(k.Servers)
	ledger := plainBase(kernel.IPVSWithIPTables, false).Ledger
	ours = func(key kernel.ServerKey) bool { return k.HasMember(want.LedgerEntry(ledger, key)) }
	return k, ours, cmp.Or(k.Unread[explain.Servers].Why, k.Unread[explain.Sets].Why)
}

// Services joins the agent's view with the kernel's virtual servers. If one of them is unavailable, it uses only the other. v is nil if no agent
// responds on the socket. unread is the reason if the kernel could not be read. name is the only Service in the view; empty for all Services.
func (m *Machine) Services(ctx context.Context, socket string, v *view.View, name string) (list inspect.ServiceList, unread string, err error) {
	k, ours, unread := m.table(ctx, socket)
	switch {
	case v == nil && unread != "":
		return list, unread, fmt.Errorf("read the virtual servers that an agent has left on this node: %s%s", unread, hint(k.Mode))
	case v == nil && name != "":
		return list, unread, fmt.Errorf("the agent does not respond, and only the agent knows which virtual servers belong to %s", name)
	case v != nil && name != "" && len(v.Services) == 0:
		return list, unread, explain.NotServed(name)
	}
	list = inspect.JoinServices(v, k.Servers, k.Mode, ours, unread)
	if why := k.Unread[explain.Connections].Why; why != "" {
		list.Uncounted(why)
	}
	return list, unread, nil
}

// hint mentions the agents that leave no virtual servers.
func hint(mode kernel.Mode) string {
	if mode == kernel.Userspace {
		return ""
	}
	return "\nAn agent with --data-plane=userspace leaves none; at loopback addresses, it answers no commands, and prints the ports that it serves"
}

// Connections reads the connections of the selected virtual servers, and their affinity records: from IPVS, which always returns all of
// them, from conntrack and nftables, or from an agent in user space, through its socket.
func (m *Machine) Connections(ctx context.Context, socket string, selected func(kernel.ServerKey) bool) ([]kernel.Connection, error) {
	var found []kernel.Connection
	take := func(c tracked) {
		if selected(kernel.ServerKey{Addr: c.Virtual, Protocol: c.server.Protocol}) {
			found = append(found, c.Connection)
		}
	}
	k := m.kernelOrProcess(ctx, Look{Parts: []explain.Part{explain.Servers, explain.Connections}, Concerns: selected, Tracked: take, Socket: socket})
	if why := cmp.Or(k.Unread[explain.Servers].Why, k.Unread[explain.Connections].Why); why != "" {
		return nil, errors.New(why)
	}
	return append(k.Connections, found...), nil
}

// WithoutIPVS says why IPVS has no virtual servers of an agent, and which commands show what is balanced instead. It returns "" where IPVS
// balances.
func (m *Machine) WithoutIPVS(ctx context.Context) string {
	const instead = "; `kube-ipvs services` shows Services, and `kube-ipvs conns` their connections"
	parts := []explain.Part{}
	mayHaveEnded := m.LastDataPlane() == kernel.DataPlaneUserspace
	if mayHaveEnded {
		parts = append(parts, explain.Servers) // of a later agent
	}
	k := m.Kernel(ctx, Look{Parts: parts})
	switch {
	case k.Mode == kernel.Userspace:
		return errInProcess.Error() + instead
	case mayHaveEnded && m.leftNothing(k):
		return errProcessEnded.Error()
	case k.Mode.IPVSBalances():
		return ""
	}
	return "nftables balances connections on this node, so IPVS has no virtual servers of Services" + instead
}

// StoppedCounters says why IPVS's counters stand still. It returns "" if they do not.
func (m *Machine) StoppedCounters(ctx context.Context) string {
	if m.LastDataPlane() == kernel.DataPlaneUserspace || !doctor.CountersStopped(m.Host(ctx)) {
		return ""
	}
	return "the counters are stopped and keep old values, because the sysctl net.ipv4.vs.run_estimation is 0 (see ipvs.trafficCounters)"
}

// Status returns the part of the status that does not come from the agent.
func (m *Machine) Status(ctx context.Context, socket string) inspect.Machine {
	k, ours, unread := m.table(ctx, socket)
	s := inspect.Machine{Kernel: m.Release(), Modules: doctor.Modules(m.Host(ctx), "ip_vs"), Error: unread}
	if unread == "" {
		s.Count(k.Servers, k.Unread[explain.Connections].Why, ours)
	}
	return s
}

// Compare finds what clients would notice if an agent took over this node.
func (m *Machine) Compare(ctx context.Context, settings *config.Settings, version string, log *zap.Logger) ([]finding.Finding, error) {
	node, err := daemon.OpenIdle(ctx, m.Machine, settings, log)
	if err != nil {
		return nil, err
	}
	defer node.Close(log)
	if node.Mode.NFTablesBalances() {
		return nil, errors.New("--compare: nftables would balance connections on this node, so there are no virtual servers to compare")
	}
	everywhere := *settings
	everywhere.Excluded = nil
	idle, err := node.Idle(ctx, &everywhere, version, log)
	if err != nil {
		return nil, err
	}
	t := inspect.Takeover{Excluded: settings.Excluded, Timeouts: settings.Timeouts}
	if t.View, t.Kernel, err = idle.Preview(ctx); err != nil {
		return nil, err
	}
	return t.Findings(), nil
}
