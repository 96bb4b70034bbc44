package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// maxDevices limits the interfaces that doctor examines in detail.
const maxDevices = 64

const (
	proxyARP       = "/proxy_arp"
	multicastAsks  = "/mcast_solicit"
	programAsks    = "/app_solicit"
	neighborPrefix = "/neigh/"
	// answersNothing is the value of arp_ignore with which the kernel answers no ARP request.
	answersNothing = 8
)

// devices returns the interfaces that packets of Services use: lo, the uplinks with the interfaces below them, other interfaces to
// networks, and the interfaces of the looked-up routes. Those of unreachable endpoints come first among the latter.
func (f *Facts) devices() (all []kernel.Interface) {
	names := []string{"lo"}
	for _, name := range f.routed() {
		names = append(names, name)
		uplink, _ := f.named(name)
		for _, i := range f.Interfaces {
			if below(i, uplink) {
				names = append(names, i.Name)
			}
		}
	}
	for _, e := range f.Endpoints {
		if e.Failure != "" {
			names = append(names, f.Routes[e.Address.Addr()].Interface)
		}
	}
	var others []string
	for _, route := range f.Routes {
		others = append(others, route.Interface)
	}
	slices.Sort(others)
	seen := map[string]bool{}
	for _, name := range append(names, others...) {
		i, exists := f.named(name)
		if exists && !seen[name] && len(all) < maxDevices {
			seen[name], all = true, append(all, i)
		}
	}
	return all
}

// below reports whether an uplink's packets leave through the interface: the parent of a VLAN, or a member of a bond or bridge.
func below(i, uplink kernel.Interface) bool {
	return i.Name != "" && (i.Name == uplink.Parent || i.Master == uplink.Name && !i.Container && i.Kind != "veth")
}

// carries reports whether a default route or a looked-up route uses the interface.
func (f *Facts) carries(i kernel.Interface) bool {
	if slices.Contains(f.Uplinks, i.Name) {
		return true
	}
	for _, route := range f.Routes {
		if route.Interface == i.Name && !route.Local {
			return true
		}
	}
	return false
}

func (f *Facts) readLinks(h reader) {
	var err error
	if f.NeighborEntries, err = h.Neighbors(); err != nil {
		f.unread("neighbor entries", err)
	}
}

// linkSysctls lists the sysctls of the interfaces that doctor examines.
func (f *Facts) linkSysctls() (names []string) {
	for _, i := range f.devices() {
		if !i.Ethernet {
			continue
		}
		names = append(names, reversePathPrefix+i.Name+arpIgnore, reversePathPrefix+i.Name+proxyARP)
		for _, family := range inet.Families {
			names = append(names, ofNeighbors(family, i)+multicastAsks, ofNeighbors(family, i)+programAsks)
		}
	}
	return names
}

func ofNeighbors(family inet.Family, i kernel.Interface) string {
	return map[inet.Family]string{inet.IPv4: "net/ipv4", inet.IPv6: "net/ipv6"}[family] + neighborPrefix + i.Name
}

// defect is a defect of an interface.
type defect struct {
	// of describes the defect of an interface; empty if it has none.
	of       func(*Facts, kernel.Interface) string
	severity finding.Severity
	subject  string
	problem  string
	remedy   string
}

var defects = []defect{
	{loDown, finding.Broken, "interface lo", "down; programs on this node cannot reach each other, or the agent's ports", "set it up: `ip link set lo up`"},
	{losesPackets, finding.Warning, "queueing disciplines", "one of them loses or delays the packets of Services",
		"unless a test needs it, restore the default: `tc qdisc del dev DEVICE root`"},
	{noCarrier, finding.Warning, "carrier", "packets of Services use an interface without a carrier",
		"plug in the cable, or set the interface's peer up; if nothing needs the interface, remove its routes"},
	{inBridge, finding.Warning, "member of a bridge", "an interface with routes belongs to a bridge or bond, which receives its packets instead of this node",
		"take it out of the bridge (`ip link set DEVICE nomaster`), or move its addresses and routes to the bridge"},
	{neverAsks, finding.Warning, "neighbor discovery", "off on an interface; this node cannot find the MAC addresses of its neighbors there",
		"set `arp on` (`ip link set DEVICE arp on`), or mcast_solicit to 3, and find the program that has changed it"},
	{neverAnswers, finding.Warning, "ARP", "this node answers no ARP request on an interface; other machines reach it only until they ask again",
		"set arp_ignore to 1, or to 0 if no Service needs strictARP; and find the program that has changed it (/etc/sysctl.d)"},
}

// checkLinks finds interfaces on the way of packets that lose packets, whatever the rules are.
func checkLinks(f Facts) (found []finding.Finding) {
	devices := f.devices()
	for _, d := range defects {
		var evidence []string
		for _, i := range devices {
			if text := d.of(&f, i); text != "" {
				evidence = append(evidence, text)
			}
		}
		if len(evidence) > 0 {
			found = append(found, finding.New(d.severity, d.subject, d.problem, examples(evidence), d.remedy))
		}
	}
	return found
}

func loDown(_ *Facts, i kernel.Interface) string {
	if i.Name != "lo" || i.Up {
		return ""
	}
	return "lo is down"
}

// losesPackets finds queues that lose or delay packets on purpose.
func losesPackets(f *Facts, i kernel.Interface) string {
	var texts []string
	for _, q := range f.Queues {
		if q.Interface != i.Index {
			continue
		}
		text := i.Name + " has the queueing discipline " + q.Kind
		switch {
		case q.Kind == "netem" && q.Loss > 0:
			texts = append(texts, fmt.Sprintf("%s, which loses %.4g %% of the packets", text, q.Loss))
		case q.Kind == "netem" && q.Delay > 0:
			texts = append(texts, fmt.Sprintf("%s, which delays packets by %s", text, q.Delay))
		case q.Kind == "netem":
			texts = append(texts, text+", which changes, loses or delays packets")
		case q.Kind == "blackhole" || q.Kind == "plug":
			texts = append(texts, text+", which lets no packet pass")
		case q.Full:
			texts = append(texts, text+" with limit 0, which lets no packet pass")
		}
	}
	return strings.Join(slices.Compact(texts), "; ")
}

// noCarrier covers no bridges: checkOverlaps finds those that lead nowhere.
func noCarrier(f *Facts, i kernel.Interface) string {
	if !i.NoCarrier || i.Kind == "bridge" || !f.carries(i) {
		return ""
	}
	return i.Name + " has no carrier"
}

func inBridge(f *Facts, i kernel.Interface) string {
	master, exists := f.named(i.Master)
	if !exists || !slices.Contains([]string{"bridge", "bond", "team"}, master.Kind) || !f.carries(i) {
		return ""
	}
	return fmt.Sprintf("routes use %s, which belongs to %s (%s)", i.Name, master.Name, master.Kind)
}

// neverAsks omits interfaces on which a program resolves neighbors, and dummies, which have none.
func neverAsks(f *Facts, i kernel.Interface) string {
	switch {
	case !i.Ethernet || !f.carries(i) || isTunnel(i):
	case i.NoARP && f.toNetwork(i) && !f.isDummy(i):
		return i.Name + " has the flag NOARP"
	case !i.NoARP:
		for _, family := range inet.Families {
			asks := ofNeighbors(family, i) + multicastAsks
			if f.Sysctls[asks] == "0" && f.Sysctls[ofNeighbors(family, i)+programAsks] == "0" {
				return asks + " = 0"
			}
		}
	}
	return ""
}

func neverAnswers(f *Facts, i kernel.Interface) string {
	own, known := f.number(reversePathPrefix + i.Name + arpIgnore)
	all, _ := f.number(reversePathPrefix + "all" + arpIgnore)
	if !i.Ethernet || i.NoARP || !known || !f.carries(i) || max(own, all) != answersNothing { // the kernel uses the larger value
		return ""
	}
	return fmt.Sprintf("%s%s%s = %d, all%s = %d", reversePathPrefix, i.Name, arpIgnore, own, arpIgnore, all)
}

// isDummy reports whether an interface is a dummy or a VLAN on one.
func (f *Facts) isDummy(i kernel.Interface) bool {
	parent, _ := f.named(i.Parent)
	return i.Kind == "dummy" || parent.Kind == "dummy"
}

func isTunnel(i kernel.Interface) bool { return overheads[i.Kind] > 0 }

// toNetwork reports whether an interface leads to other machines. In a node that is a container, such an interface is a veth.
func (f *Facts) toNetwork(i kernel.Interface) bool {
	return slices.Contains(f.Uplinks, i.Name) || f.leadsOut(i)
}

// ownerOf returns the interface that has an address.
func (f *Facts) ownerOf(addr netip.Addr) (kernel.Interface, bool) {
	for _, i := range f.Interfaces {
		if slices.ContainsFunc(i.Networks, func(p netip.Prefix) bool { return p.Addr() == addr }) {
			return i, true
		}
	}
	return kernel.Interface{}, false
}
