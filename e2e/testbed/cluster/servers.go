package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/moby/ipvs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/utils/ptr"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft"
)

// VirtualServer is a virtual server in a host's kernel.
type VirtualServer struct {
	Scheduler  string
	Persistent bool // with session affinity
	// Weights are the weights by destination.
	Weights map[netip.AddrPort]int
}

// VirtualKey returns a key such as "TCP 10.96.0.10:80".
func VirtualKey(proto Protocol, at string) string { return string(proto) + " " + at }

// persistent is the flag of servers with session affinity.
const persistent = 0x1

var (
	protocolNames   = map[uint16]Protocol{unix.IPPROTO_TCP: TCP, unix.IPPROTO_UDP: UDP, unix.IPPROTO_SCTP: SCTP}
	protocolNumbers = map[Protocol]uint8{TCP: unix.IPPROTO_TCP, UDP: unix.IPPROTO_UDP, SCTP: unix.IPPROTO_SCTP}
)

// VirtualServers reads the host's virtual servers without starting a process.
//
// It does not read /proc/net/ip_vs: if several namespaces have servers, as here, the kernel omits
// some when the file is longer than a page. (It counts the servers of all namespaces while it
// writes, but those of one namespace when it continues.)
func (h *Host) VirtualServers() (map[string]VirtualServer, error) {
	return h.virtualServers(func(netip.Addr) bool { return true })
}

// VirtualServersAt is VirtualServers for some addresses. It reads only their destinations from the
// kernel.
func (h *Host) VirtualServersAt(addrs ...netip.Addr) (map[string]VirtualServer, error) {
	return h.virtualServers(func(addr netip.Addr) bool { return slices.Contains(addrs, addr) })
}

func (h *Host) virtualServers(include func(netip.Addr) bool) (map[string]VirtualServer, error) {
	if Balancing() {
		return h.balancedServers(include)
	}
	servers := map[string]VirtualServer{}
	err := h.Do(func() error {
		kernel, err := ipvs.New("")
		if err != nil {
			return err
		}
		defer kernel.Close()
		all, err := kernel.GetServices()
		if err != nil {
			return err
		}
		for _, s := range all {
			at := addrPortOf(s.Address, s.Port)
			if !include(at.Addr()) {
				continue
			}
			weights, err := weightsOf(kernel, s)
			if err != nil {
				return err
			}
			servers[VirtualKey(protocolNames[s.Protocol], at.String())] = VirtualServer{
				Scheduler: s.SchedName, Persistent: s.Flags&persistent != 0, Weights: weights,
			}
		}
		return nil
	})
	return servers, err
}

// balancedServers reads the virtual servers that nftables balances.
func (h *Host) balancedServers(include func(netip.Addr) bool) (map[string]VirtualServer, error) {
	servers := map[string]VirtualServer{}
	err := h.Do(func() error {
		kernel, err := nft.NewBalancer(inet.Families)
		if err != nil {
			return err
		}
		defer kernel.Close()
		all, err := kernel.Read(context.Background())
		for key, s := range all {
			if !include(key.Addr.Addr()) {
				continue
			}
			server := VirtualServer{Scheduler: s.Scheduler, Persistent: s.Flags&persistent != 0, Weights: map[netip.AddrPort]int{}}
			for _, d := range s.Destinations {
				server.Weights[d.Addr] = int(d.Weight)
			}
			servers[VirtualKey(protocolNames[uint16(key.Protocol)], key.Addr.String())] = server
		}
		return err
	})
	return servers, err
}

// SetHolds reports whether a set of addresses and ports has an entry. It starts no process unless sets are in nftables.
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

// Binds reports whether an address is on kube-ipvs0.
func (h *Host) Binds(addr netip.Addr) (binds bool, err error) {
	err = h.Do(func() error {
		device, err := netlink.LinkByName("kube-ipvs0")
		if err != nil {
			return err
		}
		all, err := netlink.AddrList(device, netlink.FAMILY_ALL)
		binds = slices.ContainsFunc(all, func(a netlink.Addr) bool { return a.IP.Equal(addr.AsSlice()) })
		return err
	})
	return binds, err
}

// Weights reads the weights of one TCP virtual server by destination. Its cost does not depend on
// the number of other servers.
func (h *Host) Weights(at netip.AddrPort) (weights map[netip.AddrPort]int, err error) {
	if Balancing() {
		servers, err := h.VirtualServersAt(at.Addr())
		return servers[VirtualKey(TCP, at.String())].Weights, err
	}
	err = h.Do(func() error {
		kernel, err := ipvs.New("")
		if err != nil {
			return err
		}
		defer kernel.Close()
		key := &ipvs.Service{AddressFamily: unix.AF_INET, Protocol: unix.IPPROTO_TCP, Address: at.Addr().AsSlice(), Port: at.Port()}
		if at.Addr().Is6() {
			key.AddressFamily = unix.AF_INET6
		}
		weights, err = weightsOf(kernel, key)
		return err
	})
	return weights, err
}

func weightsOf(kernel *ipvs.Handle, s *ipvs.Service) (map[netip.AddrPort]int, error) {
	destinations, err := kernel.GetDestinations(s)
	if err != nil {
		return nil, err
	}
	weights := make(map[netip.AddrPort]int, len(destinations))
	for _, d := range destinations {
		weights[addrPortOf(d.Address, d.Port)] = d.Weight
	}
	return weights, nil
}

func addrPortOf(ip []byte, port uint16) netip.AddrPort {
	addr, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(addr.Unmap(), port)
}
