package cluster

import (
	"net/netip"

	"github.com/moby/ipvs"
	"golang.org/x/sys/unix"
)

// VirtualServer is what a host's kernel has for one address and port.
type VirtualServer struct {
	Scheduler  string
	Persistent bool // with session affinity
	// Weights by destination.
	Weights map[netip.AddrPort]int
}

// VirtualKey is "TCP 10.96.0.10:80".
func VirtualKey(proto Protocol, at string) string { return string(proto) + " " + at }

// persistent is the flag of servers with session affinity.
const persistent = 0x1

var protocolNames = map[uint16]Protocol{unix.IPPROTO_TCP: TCP, unix.IPPROTO_UDP: UDP, unix.IPPROTO_SCTP: SCTP}

// VirtualServers reads the host's virtual servers, without a process.
//
// Not from /proc/net/ip_vs: where several namespaces have servers, as here, the kernel leaves some out whenever the file is
// longer than a page. (It counts the servers of all namespaces while it writes, and those of one when it goes on.)
func (h *Host) VirtualServers() (map[string]VirtualServer, error) {
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
			destinations, err := kernel.GetDestinations(s)
			if err != nil {
				return err
			}
			weights := make(map[netip.AddrPort]int, len(destinations))
			for _, d := range destinations {
				weights[addrPortOf(d.Address, d.Port)] = d.Weight
			}
			servers[VirtualKey(protocolNames[s.Protocol], addrPortOf(s.Address, s.Port).String())] = VirtualServer{
				Scheduler: s.SchedName, Persistent: s.Flags&persistent != 0, Weights: weights,
			}
		}
		return nil
	})
	return servers, err
}

func addrPortOf(ip []byte, port uint16) netip.AddrPort {
	addr, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(addr.Unmap(), port)
}
