package doctor

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// hop is the next machine on the way to an address.
type hop struct {
	addr netip.Addr
	via  kernel.Interface
}

// hopTo returns the neighbor to which this node sends the packets to an address; ok is false if it needs none.
func (f *Facts) hopTo(addr netip.Addr) (h hop, ok bool) {
	route := f.Routes[addr]
	i, exists := f.named(route.Interface)
	h = hop{addr, i}
	if route.Gateway.IsValid() {
		h.addr = route.Gateway
	}
	return h, exists && !route.Local && i.Ethernet && !i.NoARP
}

func (f *Facts) entryOf(h hop) (kernel.Neighbor, bool) {
	at := slices.IndexFunc(f.NeighborEntries, func(n kernel.Neighbor) bool { return n.Addr == h.addr && n.Interface == h.via.Index })
	if at < 0 {
		return kernel.Neighbor{}, false
	}
	return f.NeighborEntries[at], true
}

// fixed reports whether an operator has set a neighbor entry by hand. Network plugins set the entries of tunnels.
func fixed(n kernel.Neighbor, h hop) bool {
	return n.State == "PERMANENT" && !n.Learned && !isTunnel(h.via)
}

// checkFixed reports neighbor entries that the kernel never corrects.
func checkFixed(f Facts) []finding.Finding {
	var evidence []string
	seen := map[netip.Addr]bool{}
	for addr := range f.Routes {
		h, ok := f.hopTo(addr)
		if !ok || seen[h.addr] {
			continue
		}
		seen[h.addr] = true
		if n, exists := f.entryOf(h); exists && fixed(n, h) {
			evidence = append(evidence, fmt.Sprintf("%s dev %s lladdr %s PERMANENT", h.addr, h.via.Name, n.MAC))
		}
	}
	if len(evidence) == 0 {
		return nil
	}
	slices.Sort(evidence)
	return finding.One(finding.Notice, "neighbor entries", "some are permanent; the kernel does not correct them if the neighbor's MAC address changes",
		examples(evidence), "nothing to do if the network plugin sets them, and the addresses are right; otherwise delete them: `ip neigh del ADDRESS dev DEVICE`")
}

// suspicious returns what this node knows about the neighbor that may stop packets to it.
func (f *Facts) suspicious(h hop) string {
	n, exists := f.entryOf(h)
	switch {
	case !exists:
		return ""
	case n.State == "FAILED" || n.State == "INCOMPLETE":
		return fmt.Sprintf("%s does not answer ARP or neighbor solicitations on %s (%s): it is down or gone, or uses an address of this node itself", h.addr, h.via.Name, n.State)
	case fixed(n, h):
		return fmt.Sprintf("the neighbor entry of %s on %s is permanent, and its MAC address %s may be wrong", h.addr, h.via.Name, n.MAC)
	case n.State == "NOARP" || n.MAC == "":
		return ""
	}
	for _, i := range f.Interfaces {
		if i.MAC == n.MAC {
			return fmt.Sprintf("the neighbor entry of %s on %s has the MAC address of this node's own %s", h.addr, h.via.Name, i.Name)
		}
	}
	return f.sameMAC(n, h)
}

// sameMAC finds another neighbor with the MAC address of a neighbor. More than one is the sign of a router that answers for many addresses.
func (f *Facts) sameMAC(n kernel.Neighbor, h hop) string {
	var same []string
	for _, other := range f.NeighborEntries {
		if other.MAC == n.MAC && other.Interface == n.Interface && other.Addr != n.Addr && other.Addr.Is4() == n.Addr.Is4() &&
			!other.Addr.IsLinkLocalUnicast() && !n.Addr.IsLinkLocalUnicast() {
			same = append(same, other.Addr.String())
		}
	}
	if len(same) == 1 {
		return fmt.Sprintf("%s and %s have the same MAC address %s on %s", h.addr, same[0], n.MAC, h.via.Name)
	}
	return ""
}

// suspicions returns what may stop packets to the addresses: the state of the interfaces and neighbors on the way, and the drop counters
// that grew while doctor connected.
func (f *Facts) suspicions(to []netip.Addr) (all []string) {
	add := func(text string) {
		if text != "" && !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	unknown, hops := 0, 0
	for _, addr := range to[:min(len(to), maxDevices)] {
		i, exists := f.named(f.Routes[addr].Interface)
		if !exists {
			continue
		}
		for _, d := range defects {
			add(d.of(f, i))
		}
		h, ok := f.hopTo(addr)
		if !ok {
			continue
		}
		hops++
		if slices.ContainsFunc(f.Endpoints, func(e Reached) bool { return e.Address.Addr() == addr && e.lost() }) {
			for _, text := range f.podSuspicions(addr) {
				add(text)
			}
		}
		add(f.suspicious(h))
		add(f.foreignNetwork(h, f.Routes[addr]))
		if _, exists := f.entryOf(h); !exists {
			unknown++
		}
	}
	if hops > 0 && unknown == hops {
		add("the kernel has no neighbor entries for the endpoints or the routers to them; the neighbor table may be full (gc_thresh3 in the machine's own network namespace)")
	}
	for _, text := range f.grownCounters() {
		add(text)
	}
	return all
}

// foreignNetwork finds a node whose address has changed while its routes have not.
func (f *Facts) foreignNetwork(h hop, route kernel.Route) string {
	if owner, _ := f.ownerOf(route.Source); owner.Name == kernel.Device && route.Source.IsValid() {
		return fmt.Sprintf("this node has no address of its own for packets to %s: it sends from %s, the address of a Service", h.addr, route.Source)
	}
	var ours []string
	for _, p := range h.via.Networks {
		switch {
		case p.Addr().Is4() != h.addr.Is4() || p.Addr().IsLinkLocalUnicast():
		case p.IsSingleIP() || p.Contains(h.addr):
			return ""
		default:
			ours = append(ours, p.String())
		}
	}
	if len(ours) == 0 || !route.Gateway.IsValid() || h.addr.IsLinkLocalUnicast() {
		return ""
	}
	return fmt.Sprintf("%s, to which this node sends through %s, is in none of the interface's networks (%s); this node's address may have changed",
		h.addr, h.via.Name, strings.Join(ours, ", "))
}

// podSuspicions returns what may stop packets to an endpoint on this node, or its replies.
func (f *Facts) podSuspicions(addr netip.Addr) (all []string) {
	route := f.Routes[addr]
	i, exists := f.named(route.Interface)
	if !exists || route.Local {
		return nil
	}
	if i.Kind != "bridge" && f.toNetwork(i) {
		return []string{fmt.Sprintf("the route to %s leads to %s, an interface to other machines: the pod is gone or has moved, or the network plugin has lost its route", addr, i.Name)}
	}
	if !f.podInterface(i) || i.Kind == "bridge" {
		return nil
	}
	own := slices.ContainsFunc(i.Networks, func(p netip.Prefix) bool { return p.Addr().Is4() == addr.Is4() && !p.Addr().IsLinkLocalUnicast() })
	if sysctl := reversePathPrefix + i.Name + proxyARP; addr.Is4() && !own && f.Sysctls[sysctl] == "0" {
		all = append(all, fmt.Sprintf("%s has no IPv4 address, and %s = 0: no ARP request of the pod for its gateway is answered; a permanent entry in the pod replaces the answer",
			i.Name, sysctl))
	}
	if text := f.missingGateway(i); addr.Is6() && text != "" {
		all = append(all, text)
	}
	return all
}

// missingGateway compares an interface of a pod with the others.
func (f *Facts) missingGateway(i kernel.Interface) string {
	for _, other := range f.Interfaces {
		if gateway, is := gatewayOf(other); is && f.podInterface(other) && !f.toNetwork(other) && !slices.Contains(i.Networks, gateway) {
			return fmt.Sprintf("%s lacks the address %s, at which the pod may expect its gateway, as behind %s", i.Name, gateway.Addr(), other.Name)
		}
	}
	return ""
}

// silentPods finds pods that answer ARP, so that the packets arrive at them.
func (f *Facts) silentPods(lost []netip.Addr) (all []string) {
	for _, addr := range lost {
		if h, ok := f.hopTo(addr); ok && h.addr == addr {
			if n, _ := f.entryOf(h); n.State == "REACHABLE" {
				all = append(all, fmt.Sprintf("%s answers ARP or neighbor solicitations, so packets reach the pod: it drops them, or its replies take another route", addr))
			}
		}
	}
	return all
}

// gatewayOf returns a link-local address that a network plugin has given to an interface. The kernel's own ones are long.
func gatewayOf(i kernel.Interface) (netip.Prefix, bool) {
	at := slices.IndexFunc(i.Networks, func(p netip.Prefix) bool { return isShortLinkLocal(p.Addr()) })
	if at < 0 {
		return netip.Prefix{}, false
	}
	return i.Networks[at], true
}

func isShortLinkLocal(addr netip.Addr) bool {
	b := addr.As16()
	return addr.Is6() && addr.IsLinkLocalUnicast() && [6]byte(b[8:14]) == [6]byte{}
}

// checkOverlaps finds addresses that are on this node, but belong to pods or to other nodes.
func checkOverlaps(f Facts) []finding.Finding {
	if f.View == nil {
		return nil
	}
	var evidence []string
	for _, e := range endpointsOf(f.View) {
		addr := e.Address.Addr()
		route, known := f.Routes[addr]
		if !known || e.Node == "" || e.Node == f.View.Node.Name {
			continue
		}
		what := fmt.Sprintf("endpoint %s (pod %s, node %s)", addr, e.Pod, e.Node)
		i, exists := f.named(route.Interface)
		switch {
		case route.Local:
			owner, _ := f.ownerOf(addr)
			evidence = append(evidence, fmt.Sprintf("%s: the address is also on this node's interface %s", what, owner.Name))
		case exists && !route.Gateway.IsValid() && f.leadsNowhere(i, addr):
			evidence = append(evidence, fmt.Sprintf("%s: the route leads to %s (%s), which does not lead to other nodes", what, i.Name, i.Kind))
		}
	}
	if len(evidence) == 0 {
		return nil
	}
	return finding.One(finding.Warning, "overlapping addresses", "this node keeps packets that belong to a pod or to another node", examples(slices.Compact(evidence)),
		"remove the address, or the network of Docker or another program, that overlaps with the pods' networks")
}

// leadsNowhere reports whether an interface reaches no other machine: a dummy, a bridge that has only containers or no carrier, or the interface
// of a container.
func (f *Facts) leadsNowhere(i kernel.Interface, addr netip.Addr) bool {
	switch i.Kind {
	case "dummy":
		return true
	case "bridge":
		return i.NoCarrier || !slices.ContainsFunc(f.Interfaces, func(port kernel.Interface) bool { return port.Master == i.Name && !port.Container })
	case "veth":
		inNetwork := slices.ContainsFunc(i.Networks, func(p netip.Prefix) bool { return !p.IsSingleIP() && p.Contains(addr) })
		return i.Container && !inNetwork && !slices.Contains(f.Uplinks, i.Name)
	}
	return false
}

// endpointsOf returns the endpoints of a view without duplicates.
func endpointsOf(v *view.View) (all []view.Endpoint) {
	seen := map[netip.Addr]bool{}
	for _, e := range allEndpoints(v) {
		if !seen[e.Address.Addr()] {
			seen[e.Address.Addr()], all = true, append(all, e)
		}
	}
	return all
}

// allEndpoints returns the endpoints of all frontends of a view, which may be nil.
func allEndpoints(v *view.View) iter.Seq2[view.Frontend, view.Endpoint] {
	return func(yield func(view.Frontend, view.Endpoint) bool) {
		if v == nil {
			return
		}
		for _, s := range v.Services {
			for _, f := range s.Frontends {
				for _, e := range f.Endpoints {
					if !yield(f, e) {
						return
					}
				}
			}
		}
	}
}
