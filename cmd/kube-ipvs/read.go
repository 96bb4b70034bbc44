package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/ipset"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/ipvs"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/netdev"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// ipvsTable has the kernel's virtual servers, with the owner records.
type ipvsTable struct {
	servers inspect.Servers
	mode    kernel.Mode
	members map[string]map[kernel.Element]struct{}
	ledger  map[inet.Family]string
}

// ours reports whether a ledger has the virtual server.
func (t *ipvsTable) ours(key kernel.ServerKey) bool {
	entry := want.LedgerEntry(t.ledger, key)
	_, recorded := t.members[entry.Set][entry.Element]
	return recorded
}

func readTable(ctx context.Context) (*ipvsTable, error) {
	t := &ipvsTable{ledger: plainBase(kernel.IPVSWithIPTables).Ledger, mode: readMode(ctx)}
	var err error
	if t.servers, err = readServers(ctx, t.mode); err != nil {
		return nil, err
	}
	_, t.members, err = readSets(ctx, t.mode)
	return t, err
}

// readServers reads virtual servers where they are.
func readServers(ctx context.Context, mode kernel.Mode) (servers map[kernel.ServerKey]kernel.ObservedServer, err error) {
	if mode.NFTablesBalances() {
		return servers, using(openBalancer, func(b *nft.Balancer) (err error) {
			servers, err = b.Read(ctx)
			return err
		})
	}
	return servers, using(ipvs.New, func(b *ipvs.Backend) (err error) {
		servers, err = b.Read(ctx)
		return err
	})
}

func openBalancer() (*nft.Balancer, error) { return nft.NewBalancer(inet.Families) }

// readMode finds out what the agent keeps in nftables. If that cannot be read, the other readers have the better errors.
func readMode(ctx context.Context) (mode kernel.Mode) {
	_ = using(openNFTables, func(b *nft.Backend) error {
		if exists, err := b.Exists(ctx); err != nil || !exists {
			return err
		}
		mode = kernel.IPVSWithNFTables
		balances, err := b.Balances(ctx)
		if balances && err == nil {
			mode = kernel.NFTablesOnly
		}
		return err
	})
	return mode
}

// readConnections reads the connections of IPVS.
func readConnections() ([]kernel.Connection, error) {
	if readMode(context.Background()).NFTablesBalances() {
		return nil, errors.New("nftables balances connections on this node, and does not list them; `conntrack -L` does")
	}
	return ipvs.Connections()
}

// readSets reads the agent's sets where it keeps them.
func readSets(ctx context.Context, mode kernel.Mode) (sets map[string]kernel.Set, members map[string]map[kernel.Element]struct{}, err error) {
	if mode.RulesInNFTables() {
		return sets, members, using(openNFTables, func(b *nft.Backend) (err error) {
			sets, members, err = b.ListSets(ctx, compile.SetPrefix)
			return err
		})
	}
	return sets, members, using(ipset.New, func(b *ipset.Backend) (err error) {
		sets, members, err = b.Read(ctx, compile.SetPrefix)
		return err
	})
}

func openNFTables() (*nft.Backend, error) { return nft.New(inet.Families, compile.Chains) }

// using opens a backend, uses it and closes it.
func using[B interface{ Close() error }](open func() (B, error), use func(B) error) error {
	b, err := open()
	if err != nil {
		return err
	}
	return errors.Join(use(b), b.Close())
}

// plainBase is the wanted state without Services under the default configuration. Other configurations change only some rules.
func plainBase(mode kernel.Mode) want.Base {
	return compile.Base(compile.Config{Host: compile.Host{Families: inet.Families, Mode: mode}})
}

// baseBeside is plainBase for an agent beside another proxy.
func baseBeside(mode kernel.Mode) want.Base {
	return compile.Base(compile.Config{Host: compile.Host{Families: inet.Families, Mode: mode}, Settings: compile.Settings{SideBySide: true}})
}

// lookedAt selects the kernel state that an explanation needs.
type lookedAt struct {
	client   netip.Addr                  // may be invalid
	concerns func(kernel.ServerKey) bool // selects virtual servers
	sysctls  []view.Sysctl
	// withoutConnections leaves out the connection table, which can have a million entries.
	withoutConnections bool
}

// readKernel reads everything that can affect a packet. A part that cannot be read is recorded in Unread; the others are still read.
func readKernel(ctx context.Context, at lookedAt) *explain.Kernel {
	k := &explain.Kernel{State: &kernel.State{}, Via: map[netip.Addr]string{}, Unread: map[explain.Part]explain.Unread{}}
	note := func(part explain.Part, err error) {
		if err != nil {
			k.Unread[part] = explain.Unread{Why: plainly(err), Absent: errors.Is(err, kernel.ErrUnavailable)}
		}
	}
	k.Mode = readMode(ctx)
	var err error
	k.Servers, err = readServers(ctx, k.Mode)
	note(explain.Servers, err)
	k.Sets, k.Members, err = readSets(ctx, k.Mode)
	note(explain.Sets, err)
	note(explain.Rules, readRules(ctx, k, note))
	note(explain.Addresses, using(netdev.New, func(b *netdev.Backend) error { return readAddresses(ctx, b, k, at, note) }))
	if _, unread := k.Unread[explain.Servers]; !unread && !at.withoutConnections && !k.Mode.NFTablesBalances() {
		k.Connections, err = ipvs.Connections()
		note(explain.Connections, err)
	}
	return k
}

func readRules(ctx context.Context, k *explain.Kernel, note func(explain.Part, error)) error {
	found, err := iptables.Detect(ctx)
	installed := err == nil
	if !installed && !k.Mode.RulesInNFTables() {
		return err
	}
	tables := iptables.New(iptables.Config{Chains: compile.Chains, Variant: found.Variant, Families: found.Families})
	k.Chains, err = tables.BaseChains(ctx)
	note(explain.Chains, err)
	if installed {
		k.State.Rules = map[inet.Family]kernel.RulesView{}
		for _, f := range found.Families {
			if k.State.Rules[f], err = tables.Read(ctx, f); err != nil {
				return err
			}
		}
		if k.Rules, err = tables.List(ctx); err != nil {
			return err
		}
	}
	if !k.Mode.RulesInNFTables() {
		return nil
	}
	return using(openNFTables, func(b *nft.Backend) error { return readNFTables(ctx, b, k) })
}

// readNFTables adds the agent's table. Its chains see a packet before those of iptables, and decide about new connections for both.
func readNFTables(ctx context.Context, b *nft.Backend, k *explain.Kernel) (err error) {
	k.Chains = slices.DeleteFunc(k.Chains, func(c kernel.BaseChain) bool { return c.Family == "inet" && c.Table == nft.Table })
	if k.State.Rules, err = b.Read(ctx); err != nil {
		return err
	}
	ours, err := b.List(ctx)
	if err != nil {
		return err
	}
	for family, listing := range ours {
		theirs := k.Rules[family]
		maps.Copy(listing.Policies, theirs.Policies)
		for id, rules := range theirs.Rules {
			listing.Rules[id] = append(listing.Rules[id], rules...)
		}
	}
	k.Rules = ours
	return nil
}

func readAddresses(ctx context.Context, b *netdev.Backend, k *explain.Kernel, at lookedAt, note func(explain.Part, error)) error {
	var names []string
	for _, s := range at.sysctls {
		names = append(names, s.Name)
	}
	var errs [4]error
	k.Sysctls, errs[0] = b.ReadSysctls(ctx, names)
	note(explain.Sysctls, errs[0])
	k.Device, k.State.Addresses, errs[1] = b.ReadDevice(ctx)
	k.NodeAddresses, errs[2] = b.NodeAddresses(ctx)
	k.Bridges, errs[3] = b.Bridges()
	findWays(b, k, at)
	return errors.Join(errs[1:]...)
}

// findWays looks up the interface to the client and to each destination. Rules that match an unknown interface are skipped.
func findWays(b *netdev.Backend, k *explain.Kernel, at lookedAt) {
	find := func(addr netip.Addr) {
		if name, err := b.InterfaceTo(addr); err == nil {
			k.Via[addr] = name
		}
	}
	if at.client.IsValid() {
		find(at.client)
	}
	for key, server := range k.Servers {
		if at.concerns(key) {
			for _, d := range server.Destinations {
				find(d.Addr.Addr())
			}
		}
	}
}

// interfaceNames lists the interfaces of this process's network namespace.
func interfaceNames() ([]string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list the interfaces of this node: %w", err)
	}
	var names []string
	for _, i := range all {
		names = append(names, i.Name)
	}
	return names, nil
}

// plainly describes a failed read of the kernel and its remedy.
func plainly(err error) string {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Sprintf("only root may read it (capability NET_ADMIN); run the command as root (%v)", err)
	}
	return err.Error()
}
