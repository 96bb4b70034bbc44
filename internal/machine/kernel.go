package machine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/daemon"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/conntrack"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/foreign"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/ipset"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/ipvs"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/live"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/netdev"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Look selects the parts of the kernel to read.
type Look struct {
	// Parts are the parts to read; nil for all. explain.Rules includes the chains, and explain.Addresses includes the
	// sysctls.
	Parts []explain.Part
	// readKernel looks up the routes to Clients, to the virtual servers that Concerns selects, and to their destinations.
	// A nil Concerns selects none. Interface is the interface on which the clients' packets arrive, if it is known.
	Clients   []netip.Addr
	Interface string
	// Others are addresses to which only the routes are looked up. If Outsiders is true, readKernel reads only a sample of the connections, and
	// adds the clients among them that Kernel.Outsiders selects.
	Others    []netip.Addr
	Outsiders bool
	Concerns  func(kernel.ServerKey) bool
	// Tracked is called for each tracked connection to a virtual server, where nftables balances. readKernel keeps none of them.
	Tracked func(tracked)
	Sysctls []view.Sysctl
	// Ours are the rulesets that the agent may have written to iptables.
	Ours []kernel.Ruleset
	// Tables describes this node's iptables; empty if unknown.
	Tables iptables.Detection
	// Socket is the status socket of an agent in user space, which alone knows its virtual servers and connections.
	Socket string
}

func (at Look) reads(part explain.Part) bool {
	return at.Parts == nil || slices.Contains(at.Parts, part)
}

// readKernel reads the state that can affect a packet. If a part cannot be read, readKernel records the error in
// Unread and reads the remaining parts.
func readKernel(ctx context.Context, at Look) *explain.Kernel {
	k := &explain.Kernel{
		State: &kernel.State{}, Mode: live.FindMode(ctx), Routes: map[netip.Addr]kernel.Route{}, Arrivals: map[explain.Arrival]kernel.Route{}, Unread: map[explain.Part]explain.Unread{},
		Namespace: daemon.NetworkNamespace(),
	}
	if inProcess() {
		k.Mode = kernel.Userspace
		readProcess(ctx, k, at, errInProcess)
		return k
	}
	note := func(part explain.Part, err error) {
		if err != nil {
			k.Unread[part] = Unread(err)
		}
	}
	read := func(part explain.Part, read func() error) {
		if at.reads(part) {
			note(part, read())
		}
	}
	read(explain.Servers, func() (err error) {
		k.Servers, err = live.ReadServers(ctx, k.Mode)
		return err
	})
	read(explain.Sets, func() (err error) {
		k.Sets, k.Members, err = live.ReadSets(ctx, k.Mode, compile.SetPrefix)
		return err
	})
	if k.Mode.IPVSBalances() && at.Concerns != nil && at.reads(explain.Sets) {
		read(explain.Servers, func() error { return addLimits(ctx, k, at.Concerns) })
	}
	read(explain.Rules, func() error { return readRules(ctx, k, at, note) })
	read(explain.Rules, func() (err error) {
		k.OtherSets, err = ipset.ReadOthers(ctx, compile.SetPrefix)
		return err
	})
	if _, unread := k.Unread[explain.Servers]; !unread && !k.Mode.NFTablesBalances() {
		read(explain.Servers, func() (err error) {
			k.MarkServers, err = readUsing(ipvs.New, func(b *ipvs.Backend) ([]kernel.TableServer, error) { return b.MarkServers(ctx) })
			return err
		})
		read(explain.Connections, func() (err error) {
			list := ipvs.Connections
			if at.Outsiders {
				list = ipvs.SomeConnections
			}
			k.Connections, err = list()
			return err
		})
	}
	if k.Mode.NFTablesBalances() {
		read(explain.Connections, func() (err error) {
			k.Connections, err = live.ReadClients(ctx, withAffinity(k.Servers, at.Concerns))
			return err
		})
		if at.Tracked != nil {
			note(explain.Connections, using(conntrack.New, func(b *conntrack.Backend) error { return b.Each(ctx, ofServers(k.Servers, at.Tracked)) }))
		}
	}
	read(explain.Addresses, func() error {
		return using(netdev.New, func(b *netdev.Backend) error { return readAddresses(ctx, b, k, at, note) })
	})
	return k
}

// addLimits adds the connection limits of the selected virtual servers, which only a lookup returns.
func addLimits(ctx context.Context, k *explain.Kernel, concerns func(kernel.ServerKey) bool) error {
	recorded := plainBase(kernel.IPVSWithIPTables, false).Limited
	var limited []kernel.ServerKey
	for key := range k.Servers {
		if concerns(key) && k.HasMember(want.LedgerEntry(recorded, key)) {
			limited = append(limited, key)
		}
	}
	if len(limited) == 0 {
		return nil
	}
	found, err := readUsing(ipvs.New, func(b *ipvs.Backend) (map[kernel.ServerKey]kernel.ObservedServer, error) {
		return b.Lookup(ctx, limited)
	})
	maps.Copy(k.Servers, found)
	return err
}

// Unread describes why a read failed, and how to fix it.
func Unread(err error) explain.Unread {
	u := explain.Unread{Why: err.Error(), Absent: errors.Is(err, kernel.ErrUnavailable)}
	if errors.Is(err, fs.ErrPermission) {
		u.Why = fmt.Sprintf("reading requires the capability NET_ADMIN; run the command as root (%v)", err)
	}
	return u
}

func openNFTables() (*nft.Backend, error) { return nft.New(inet.Families, compile.Chains) }

func using[B interface{ Close() error }](open func() (B, error), use func(B) error) error {
	b, err := open()
	if err != nil {
		return err
	}
	return errors.Join(use(b), b.Close())
}

func readUsing[B interface{ Close() error }, T any](open func() (B, error), read func(B) (T, error)) (result T, err error) {
	err = using(open, func(b B) (err error) {
		result, err = read(b)
		return err
	})
	return result, err
}

func readRules(ctx context.Context, k *explain.Kernel, at Look, note func(explain.Part, error)) (err error) {
	found := at.Tables
	if found.Variant == "" {
		found, err = iptables.Detect(ctx)
	}
	if found.Variant != iptables.Legacy {
		legacy := iptables.New(iptables.Config{Variant: iptables.Legacy, Families: inet.Families})
		listings, err := legacy.List(ctx)
		k.Legacy = listings
		note(explain.Legacy, err)
	}
	installed := err == nil
	if !installed && !k.Mode.RulesInNFTables() {
		return err
	}
	tables := iptables.New(iptables.Config{Chains: compile.Chains, Variant: found.Variant, Families: found.Families})
	note(explain.Chains, readChains(ctx, tables, k))
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
		for _, r := range at.Ours {
			k.Rules[r.Family].Recognize(r)
		}
	}
	if !k.Mode.RulesInNFTables() {
		return nil
	}
	return using(openNFTables, func(b *nft.Backend) error { return readNFTables(ctx, b, k) })
}

func readChains(ctx context.Context, tables *iptables.Backend, k *explain.Kernel) (err error) {
	if k.Chains, err = tables.BaseChains(ctx); err != nil {
		return err
	}
	if k.Mode.RulesInNFTables() {
		k.Chains = slices.DeleteFunc(k.Chains, func(c kernel.BaseChain) bool { return c.Family == "inet" && c.Table == nft.Table })
	}
	k.NFTables, err = foreign.Read(ctx, k.Chains)
	return err
}

// readNFTables adds the agent's table. Packets traverse this table's chains before the iptables chains.
func readNFTables(ctx context.Context, b *nft.Backend, k *explain.Kernel) (err error) {
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

func readAddresses(ctx context.Context, b *netdev.Backend, k *explain.Kernel, at Look, note func(explain.Part, error)) error {
	var names []string
	for _, s := range at.Sysctls {
		names = append(names, s.Name)
	}
	names = append(names, kernel.IPv6Switch)
	var errs [5]error
	k.Sysctls, errs[0] = b.ReadSysctls(ctx, names)
	note(explain.Sysctls, errs[0])
	k.Indexes = map[string]int{}
	if all, err := net.Interfaces(); err == nil { // explain needs the indexes to evaluate rules that match them
		for _, i := range all {
			k.Indexes[i.Name] = i.Index
		}
	}
	k.Device, k.State.Addresses, errs[1] = b.ReadDevice(ctx)
	k.NodeAddresses, errs[2] = b.NodeAddresses(ctx)
	k.Bridges, errs[3] = b.Bridges()
	k.Unrouted, errs[4] = unrouted(ctx, b, k)
	note(explain.Routes, findRoutes(b, k, at))
	return errors.Join(errs[1:]...)
}

// unrouted returns the addresses on kube-ipvs0 and the node's own addresses that have no local route. It omits addresses that the agent or
// another program has just deleted.
func unrouted(ctx context.Context, b *netdev.Backend, k *explain.Kernel) (missing []netip.Addr, err error) {
	local, err := b.LocalRoutes(ctx)
	if err != nil {
		return nil, err
	}
	bound, own := k.State.Addresses, k.NodeAddresses
	for _, addr := range slices.AppendSeq(slices.Clone(own), maps.Keys(bound)) {
		if !local[addr] {
			missing = append(missing, addr)
		}
	}
	if len(missing) == 0 {
		return nil, nil
	}
	_, still, err := b.ReadDevice(ctx)
	own, err2 := b.NodeAddresses(ctx)
	missing = slices.DeleteFunc(missing, func(addr netip.Addr) bool {
		_, stays := still[addr]
		return !stays && !slices.Contains(own, addr)
	})
	slices.SortFunc(missing, netip.Addr.Compare)
	return slices.Compact(missing), errors.Join(err, err2)
}

// findRoutes looks up routes. A failed lookup leaves a route unknown; findRoutes returns the first error.
func findRoutes(b *netdev.Backend, k *explain.Kernel, at Look) (failed error) {
	k.Marks, failed = b.MarkRules()
	find := func(addr netip.Addr) {
		if _, known := k.Routes[addr]; known {
			return
		}
		route, err := b.RouteTo(addr, 0)
		if failed = cmp.Or(failed, err); err == nil {
			k.Routes[addr] = route
		}
	}
	for _, client := range slices.Concat(at.Clients, at.Others) {
		find(client)
	}
	if at.Outsiders {
		for _, client := range k.Outsiders() {
			find(client)
		}
	}
	for key, server := range k.Servers {
		if at.Concerns == nil || !at.Concerns(key) {
			continue
		}
		find(key.Addr.Addr())
		for _, d := range server.Destinations {
			find(d.Addr.Addr())
			for _, rule := range k.Marks {
				marked := explain.Arrival{To: d.Addr.Addr(), Mark: rule.Mark}
				route, err := b.RouteTo(marked.To, marked.Mark)
				if failed = cmp.Or(failed, err); err == nil {
					k.Arrivals[marked] = route
				}
			}
		}
		for _, client := range at.Clients {
			failed = cmp.Or(failed, findArrival(b, k, explain.Arrival{From: client, To: key.Addr.Addr()}, at.Interface))
			for _, d := range server.Destinations {
				if !k.IsLocal(client) {
					failed = cmp.Or(failed, findArrival(b, k, explain.Arrival{From: d.Addr.Addr(), To: client}, ""))
				}
			}
		}
	}
	return failed
}

// findArrival looks up the route of a client's packets to a frontend, or of an endpoint's replies to a client.
func findArrival(b *netdev.Backend, k *explain.Kernel, arrival explain.Arrival, on string) (failed error) {
	on = cmp.Or(on, k.Routes[arrival.From].Interface)
	if _, known := k.Arrivals[arrival]; known || on == "" || k.IsLocal(arrival.From) || arrival.From.Is4() != arrival.To.Is4() {
		return nil
	}
	for _, rule := range append([]kernel.MarkRule{{}}, k.Marks...) {
		arrival.Mark = rule.Mark
		route, err := b.RouteOf(arrival.To, arrival.From, on, rule.Mark)
		if failed = cmp.Or(failed, err); err == nil {
			k.Arrivals[arrival] = route
		}
	}
	return failed
}
