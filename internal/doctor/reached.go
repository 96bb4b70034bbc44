package doctor

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// Reached is a ready endpoint on this node, with the error of a direct connection to it, or "" if the connection succeeded.
type Reached struct {
	Address      netip.AddrPort
	Pod, Service string
	Failure      string
}

// EndpointsToConnect returns ready TCP endpoints on this node. Together with the walks, they stay within MaxConnects. A connection to a
// Service reaches only one of its endpoints, so it may miss one that is unreachable. Endpoints on other nodes are skipped, because a network
// policy may block connections from this node.
func EndpointsToConnect(v *view.View, walks []Walk) []Reached {
	if v == nil {
		return nil
	}
	var all []Reached
	left := MaxConnects - len(ToConnect(walks))
	seen := map[netip.AddrPort]bool{}
	for _, s := range v.Services {
		for _, f := range s.Frontends {
			for _, e := range f.Endpoints {
				if f.Protocol != tcp || f.AllPorts || e.Node != v.Node.Name || !getsConnections(e) || seen[e.Address] || len(all) >= left {
					continue
				}
				seen[e.Address] = true
				all = append(all, Reached{Address: e.Address, Pod: e.Pod, Service: s.ID()})
			}
		}
	}
	return all
}

func checkEndpoints(f Facts) []finding.Finding {
	var evidence []string
	for _, e := range f.Endpoints {
		if e.Failure != "" {
			evidence = append(evidence, fmt.Sprintf("%s (pod %s) of Service %s: %s", e.Address, e.Pod, e.Service, e.Failure))
		}
	}
	if len(evidence) == 0 {
		return nil
	}
	return finding.One(finding.Warning, "endpoints on this node", "ready, but this node cannot connect to them; Services send them a share of the connections",
		examples(evidence), "check the pod, its interface and network policies, and the node's neighbor entry: `ip route get ADDRESS`, `ip neigh show to ADDRESS`")
}

func checkUnrouted(f Facts) []finding.Finding {
	if len(f.Unrouted) == 0 {
		return nil
	}
	var evidence, commands []string
	for i, addr := range f.Unrouted {
		evidence = append(evidence, addr.String())
		if i < shown {
			commands = append(commands, fmt.Sprintf("run `ip addr del %s dev %s`", netip.PrefixFrom(addr, addr.BitLen()), kernel.Device))
		}
	}
	return finding.One(finding.Broken, "local routes", "missing for addresses on kube-ipvs0; the kernel forwards packets to these Services instead of delivering them here",
		examples(evidence), "stop the program that removes them; then "+strings.Join(commands, ", ")+"; the agent then adds the address again, and the kernel adds the route")
}
