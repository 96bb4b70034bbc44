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
func (m *Machine) table(ctx context.Context) (k *explain.Kernel, ours func(kernel.ServerKey) bool, unread string) {
	k = m.Kernel(ctx, Look{Parts: []explain.Part{explain.Servers, explain.Sets}})
	ledger := plainBase(kernel.IPVSWithIPTables, false).Ledger
	ours = func(key kernel.ServerKey) bool { return k.HasMember(want.LedgerEntry(ledger, key)) }
	return k, ours, cmp.Or(k.Unread[explain.Servers].Why, k.Unread[explain.Sets].Why)
}

// Services joins the agent's view with the kernel's virtual servers. If one of them is unavailable, it uses only the other. v is nil if no agent
// responds. unread is the reason if the kernel could not be read. name is the only Service in the view; empty for all Services.
func (m *Machine) Services(ctx context.Context, v *view.View, name string) (list inspect.ServiceList, unread string, err error) {
	k, ours, unread := m.table(ctx)
	switch {
	case v == nil && unread != "":
		return list, unread, fmt.Errorf("read the virtual servers of this node: %s", unread)
	case v == nil && name != "":
		return list, unread, fmt.Errorf("the agent does not respond, and only the agent knows which virtual servers belong to %s", name)
	case v != nil && name != "" && len(v.Services) == 0:
		return list, unread, explain.NotServed(name)
	}
	return inspect.JoinServices(v, k.Servers, ours, unread), unread, nil
}

// Connections reads the connections that IPVS tracks.
func (m *Machine) Connections(ctx context.Context) ([]kernel.Connection, error) {
	k := m.Kernel(ctx, Look{Parts: []explain.Part{explain.Connections}})
	if k.Mode.NFTablesBalances() {
		return nil, errors.New("nftables balances connections on this node and cannot list them; use `conntrack -L`")
	}
	if unread, is := k.Unread[explain.Connections]; is {
		return nil, errors.New(unread.Why)
	}
	return k.Connections, nil
}

// Status returns the part of the status that does not come from the agent.
func (m *Machine) Status(ctx context.Context) inspect.Machine {
	k, ours, unread := m.table(ctx)
	s := inspect.Machine{Kernel: m.Release(), Modules: doctor.Modules(m.Host(ctx), "ip_vs"), Error: unread}
	if unread == "" {
		s.Count(k.Servers, k.Mode, ours)
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
