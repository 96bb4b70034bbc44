package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/utils/ptr"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/ipvs"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/balance"
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
	return h.VirtualServersIn(Balancing())
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

// SetHolds reports whether a set of addresses and ports contains the entry.
func (h *Host) SetHolds(set string, protocol Protocol, at netip.AddrPort) (holds bool, err error) {
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

// Binds reports whether packets to a virtual address reach the host itself. The kernel lists an IPv6 address shortly
// before it adds the route. Until then, it sends packets for the address to the default gateway.
func (h *Host) Binds(addr netip.Addr) (binds bool, err error) {
	err = h.Do(func() error {
		routes, err := netlink.RouteGet(addr.AsSlice())
		if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
			return nil
		}
		binds = slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Type == unix.RTN_LOCAL })
		return err
	})
	return binds, err
}

// Weights reads the weights of one TCP virtual server by destination. Its cost does not depend on the number of
// other servers.
func (h *Host) Weights(at netip.AddrPort) (weights map[netip.AddrPort]int, err error) {
	if Balancing() {
		servers, err := h.VirtualServers()
		return servers[VirtualKey(TCP, at.String())].Weights, err
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
