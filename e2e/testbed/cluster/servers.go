package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/utils/ptr"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/ipvs"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/balance"
	"github.com/kube-ipvs/kube-ipvs/internal/status"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// VirtualServer is a virtual server in a host's kernel.
type VirtualServer struct {
	Scheduler  string
	Persistent bool // with session affinity
	// Weights maps destinations to their weights.
	Weights map[netip.AddrPort]int
}

// VirtualKey returns a key such as "TCP 10.96.0.10:80".
func VirtualKey(proto Protocol, at string) string { return string(proto) + " " + at }

var protocolNumbers = map[Protocol]uint8{TCP: unix.IPPROTO_TCP, UDP: unix.IPPROTO_UDP, SCTP: unix.IPPROTO_SCTP}

// serverReader reads virtual servers with the agent's own code. Other tests compare that code with ipvsadm and nft.
type serverReader interface {
	Read(context.Context) (map[kernel.ServerKey]kernel.ObservedServer, error)
	Close() error
}

func openServers(balancing bool) (serverReader, error) {
	if balancing {
		return balance.New(inet.Families)
	}
	return ipvs.New()
}

// VirtualServers reads the host's virtual servers without starting a process.
func (h *Host) VirtualServers() (map[string]VirtualServer, error) {
	if Userspace() {
		return h.forwarded(agent.Query{All: true})
	}
	return h.VirtualServersIn(Balancing())
}

// StatusSocket is the path of the status socket of the host's agent.
func (h *Host) StatusSocket() string {
	return filepath.Join(filepath.Dir(config.StatusSocket), h.Namespace()+".sock")
}

// forwarded reads virtual servers from an agent that keeps them in its process. Without an agent, there are none.
func (h *Host) forwarded(query agent.Query) (map[string]VirtualServer, error) {
	v, silence, err := status.Ask(context.Background(), h.StatusSocket(), query)
	if v == nil || silence != nil || err != nil {
		return nil, err
	}
	servers := map[string]VirtualServer{}
	for _, svc := range v.Services {
		for _, f := range svc.Frontends {
			if f.State == view.Missing || !f.Ours() {
				continue
			}
			server := VirtualServer{Scheduler: f.Scheduler, Persistent: f.Affinity > 0, Weights: map[netip.AddrPort]int{}}
			for _, e := range f.Endpoints {
				if e.Weight != nil {
					server.Weights[e.Address] = int(*e.Weight)
				}
			}
			servers[VirtualKey(Protocol(strings.ToUpper(f.Protocol)), f.Address.String())] = server
		}
	}
	return servers, nil
}

// VirtualServersIn reads the host's virtual servers in nftables if balancing is true, and otherwise in IPVS.
func (h *Host) VirtualServersIn(balancing bool) (map[string]VirtualServer, error) {
	servers := map[string]VirtualServer{}
	err := h.Do(func() error {
		reader, err := openServers(balancing)
		if err != nil {
			return err
		}
		defer reader.Close()
		all, err := reader.Read(context.Background())
		for key, s := range all {
			servers[VirtualKey(Protocol(strings.ToUpper(key.Protocol.String())), key.Addr.String())] = VirtualServer{
				Scheduler: s.Scheduler, Persistent: s.Flags&kernel.FlagPersistent != 0, Weights: weightsOf(s),
			}
		}
		return err
	})
	return servers, err
}

// SetHolds reports whether a set of addresses and ports contains the entry. In user space, a port needs no entry to be open.
func (h *Host) SetHolds(set string, protocol Protocol, at netip.AddrPort) (holds bool, err error) {
	if Userspace() {
		return true, nil
	}
	if NFTables() {
		out, err := h.Run("nft", "list", "set", "inet", "kube-ipvs", set)
		entry := fmt.Sprintf(" %s . %s . %d", at.Addr(), strings.ToLower(string(protocol)), at.Port())
		return strings.Contains(out, entry+",") || strings.Contains(out, entry+" }"), err
	}
	err = h.Do(func() (err error) {
		holds, err = netlink.IpsetTest(set, &netlink.IPSetEntry{IP: at.Addr().AsSlice(), Port: ptr.To(at.Port()), Protocol: ptr.To(protocolNumbers[protocol])})
		return err
	})
	return holds, err
}

// Binds reports whether packets to a virtual address reach the host itself, or the namespace of its agent. The kernel
// lists an IPv6 address shortly before it adds the route. Until then, it sends packets for the address to the default
// gateway.
func (h *Host) Binds(addr netip.Addr) (binds bool, err error) {
	err = h.Do(func() error {
		routes, err := netlink.RouteGet(addr.AsSlice())
		if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
			return nil
		}
		isBound := func(r netlink.Route) bool { return r.Type == unix.RTN_LOCAL }
		if Userspace() {
			device, err := netlink.LinkByName(kernel.Device)
			if err != nil {
				return err
			}
			isBound = func(r netlink.Route) bool { return r.LinkIndex == device.Attrs().Index }
		}
		binds = slices.ContainsFunc(routes, isBound)
		return err
	})
	return binds, err
}

// Weights reads the weights of one TCP virtual server by destination. Its cost does not depend on the number of
// other servers.
func (h *Host) Weights(at netip.AddrPort) (weights map[netip.AddrPort]int, err error) {
	key := VirtualKey(TCP, at.String())
	switch {
	case Balancing():
		servers, err := h.VirtualServers()
		return servers[key].Weights, err
	case Userspace():
		servers, err := h.forwarded(agent.Query{Address: at.Addr()})
		return servers[key].Weights, err
	}
	err = h.Do(func() error {
		backend, err := ipvs.New()
		if err != nil {
			return err
		}
		defer backend.Close()
		key := kernel.ServerKey{Addr: at, Protocol: inet.TCP}
		found, err := backend.Lookup(context.Background(), []kernel.ServerKey{key})
		weights = weightsOf(found[key])
		return err
	})
	return weights, err
}

func weightsOf(s kernel.ObservedServer) map[netip.AddrPort]int {
	weights := make(map[netip.AddrPort]int, len(s.Destinations))
	for _, d := range s.Destinations {
		weights[d.Addr] = int(d.Weight)
	}
	return weights
}
