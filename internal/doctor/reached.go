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
				ends := e.State == view.Serving // it may refuse connections at any moment
				if f.Protocol != tcp || f.AllPorts || e.Node != v.Node.Name || !getsConnections(e) || ends || seen[e.Address] || len(all) >= left {
					continue
				}
				seen[e.Address] = true
				all = append(all, Reached{Address: e.Address, Pod: e.Pod, Service: s.ID()})
			}
		}
	}
	return all
}

// lost reports whether the packets to the endpoint, or its replies, were lost. An endpoint that refuses a connection replies.
func (r Reached) lost() bool { return r.Failure != "" && !refused(r.Failure) }

func refused(failure string) bool { return strings.Contains(failure, "refused") }

func checkEndpoints(f Facts) []finding.Finding {
	var evidence []string
	var lost []netip.Addr
	for _, e := range f.Endpoints {
		if e.Failure != "" {
			evidence = append(evidence, fmt.Sprintf("%s (pod %s) of Service %s: %s", e.Address, e.Pod, e.Service, e.Failure))
		}
		if e.lost() {
			lost = append(lost, e.Address.Addr())
		}
	}
	if len(evidence) == 0 {
		return nil
	}
	evidence = examples(evidence)
	reasons := f.suspicions(lost)
	if len(reasons) == 0 {
		reasons = f.silentPods(lost)
	}
	for _, reason := range examples(reasons) {
		evidence = append(evidence, "this may be the reason: "+reason)
	}
	return finding.One(finding.Warning, "endpoints on this node", "ready, but this node cannot connect to them; Services send them a share of the connections",
		evidence, "check the pod, its interface and network policies, and the node's neighbor entry: `ip route get ADDRESS`, `ip neigh show to ADDRESS`")
}

// checkUnrouted finds addresses that are not local according to the kernel's local table.
func checkUnrouted(f Facts) (found []finding.Finding) {
	var evidence, commands, own []string
	for _, addr := range f.Unrouted {
		owner, known := f.ownerOf(addr)
		switch {
		case !known || owner.Name == kernel.Device:
			evidence = append(evidence, addr.String())
			commands = append(commands, fmt.Sprintf("ip addr del %s dev %s", netip.PrefixFrom(addr, addr.BitLen()), kernel.Device))
		case owner.Up && !f.inVRF(owner):
			own = append(own, fmt.Sprintf("%s on %s", addr, owner.Name))
		}
	}
	if len(evidence) > 0 {
		found = finding.One(finding.Broken, "local routes", "missing for addresses on kube-ipvs0; the kernel forwards packets to these Services instead of delivering them here",
			examples(evidence), "stop the program that removes them; then "+run(commands)+"; the agent then adds the address again, and the kernel adds the route")
	}
	if len(own) > 0 {
		found = append(found, finding.New(finding.Broken, "local routes",
			"missing for this node's own addresses; the kernel does not deliver packets to them, such as replies from pods and requests to node ports", examples(own),
			"stop the program that removes them; then add them again: `ip route add local ADDRESS dev DEVICE table local proto kernel scope host src ADDRESS`"))
	}
	return found
}

// inVRF reports whether the local routes of an interface's addresses are in the table of a VRF.
func (f *Facts) inVRF(i kernel.Interface) bool {
	master, exists := f.named(i.Master)
	return exists && master.Kind == "vrf"
}
