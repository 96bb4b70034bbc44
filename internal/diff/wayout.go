package diff

import (
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// WayOut plans the release of the kube-ipvs0 addresses that the node needs to reach the API server. It is used while no Service is known
// yet. have must be freshly read. Only the kernel state shows which addresses are ours, and which of these are ClusterIPs. ClusterIPs
// stay: the agent may reach the API server through its Service. The virtual servers are removed first, because IPVS also receives the
// node's own packets to addresses that are not bound.
func WayOut(w *Target, have *kernel.State, needed []netip.Addr) []kernel.Op {
	var servers, addresses []kernel.Op
	ours := ownedAddresses(w, have, Options{})
	for _, addr := range needed {
		binding, bound := have.Addresses[addr]
		if own, some := ownBinding(ours, addr, binding); !bound || !some || own != binding || isClusterIP(w, have, addr) {
			continue
		}
		for key, server := range have.Servers {
			if key.Addr.Addr() == addr && recorded(w, have, key, Options{}) {
				servers = append(servers, kernel.Op{Verb: kernel.Delete, Object: server.Server})
			}
		}
		addresses = append(addresses, kernel.Op{Verb: kernel.Delete, Object: kernel.BoundAddress{Addr: addr, Binding: binding}})
	}
	if len(servers) > 0 {
		sortOps(servers)
	}
	return append(servers, addresses...)
}

// isClusterIP reports whether a port of the address is in a set of ClusterIP ports.
func isClusterIP(w *Target, have *kernel.State, addr netip.Addr) bool {
	for element := range have.Members[w.Base().ClusterIPs[inet.FamilyOf(addr)]] {
		if element.Addr == addr {
			return true
		}
	}
	return false
}
