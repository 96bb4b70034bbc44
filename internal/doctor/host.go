package doctor

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

const (
	arpIgnore      = "/arp_ignore"
	arpAnnounce    = "/arp_announce"
	acceptRA       = "/accept_ra"
	ipv6Conf       = "net/ipv6/conf/"
	ipv6Forwarding = ipv6Conf + "all/forwarding"
	defaultTTL     = "net/ipv4/ip_default_ttl"
	localPorts     = "net/ipv4/ip_local_port_range"
	reservedPorts  = "net/ipv4/ip_local_reserved_ports"
)

// neighborLimits are the sysctls that limit the neighbor table of a family. neighborCounts are the files that
// show the number of entries.
var (
	neighborLimits = map[inet.Family]string{inet.IPv4: "net/ipv4/neigh/default/gc_thresh3", inet.IPv6: "net/ipv6/neigh/default/gc_thresh3"}
	neighborCounts = map[inet.Family]string{inet.IPv4: "/proc/net/stat/arp_cache", inet.IPv6: "/proc/net/stat/ndisc_cache"}
)

// announcers lists programs that answer ARP requests for load balancer addresses: MetalLB's speaker and kube-vip.
var announcers = []string{"speaker", "kube-vip"}

func (f *Facts) readInterfaces(h reader) {
	all, err := h.Interfaces()
	if err != nil {
		f.unread("network interfaces", err)
	}
	f.Interfaces = all
}

// isVirtual reports whether the packets of an interface come from this machine or from a tunnel.
func isVirtual(i kernel.Interface) bool {
	return i.Name == "lo" || i.Container || slices.Contains([]string{"veth", "dummy", "tun", "ifb", "vrf", "nlmon"}, i.Kind) || isTunnel(i)
}

// podInterface reports whether an interface leads to pods: the node's end of a pod's veth pair, or a bridge with such
// ports. Docker's bridges lead to Docker's own containers.
func (f *Facts) podInterface(i kernel.Interface) bool {
	if i.Kind != "bridge" {
		return i.Kind == "veth" && i.Container && !isDockers(i.Master)
	}
	return !isDockers(i.Name) && slices.ContainsFunc(f.Interfaces, func(port kernel.Interface) bool { return port.Master == i.Name && port.Container })
}

// isDockers reports whether Docker or libvirt uses the name for a bridge.
func isDockers(bridge string) bool {
	id, named := strings.CutPrefix(bridge, "br-")
	_, err := strconv.ParseUint(id, 16, 64)
	return bridge == "docker0" || named && len(id) == 12 && err == nil || strings.HasPrefix(bridge, "virbr")
}

// routed returns the interfaces on which requests from other machines may arrive: the uplinks, and other interfaces
// with an address.
func (f *Facts) routed() []string {
	names := slices.Clone(f.Uplinks)
	for _, i := range f.Interfaces {
		if i.Up && i.Addressed && f.leadsOut(i) && !slices.Contains(names, i.Name) {
			names = append(names, i.Name)
		}
	}
	return names
}

// leadsOut reports whether an interface leads to other machines: a hardware interface, a VLAN or bond on top of it, or
// a bridge with such a port.
func (f *Facts) leadsOut(i kernel.Interface) bool {
	if i.Kind != "bridge" {
		return !isVirtual(i)
	}
	return slices.ContainsFunc(f.Interfaces, func(port kernel.Interface) bool { return port.Master == i.Name && !isVirtual(port) })
}

// word returns the content of a file without surrounding space, or "" if the file does not exist.
func (r reader) word(file, subject string) string {
	text, _ := r.may(file, subject)
	return strings.TrimSpace(text)
}

func (f *Facts) readMemory(h reader) {
	for line := range strings.Lines(h.must("/proc/meminfo", "memory")) {
		name, value, _ := strings.Cut(line, ":")
		kilobytes, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch {
		case err != nil:
		case name == "MemTotal":
			f.Memory = kilobytes
		case name == "MemAvailable":
			f.MemoryLeft = kilobytes
		}
	}
	if f.Memory == 0 {
		f.unread("memory", errors.New("/proc/meminfo has no MemTotal"))
	}
}

// readNeighbors reads the size of the neighbor tables, which all network namespaces share. Only the initial namespace
// shows the total; in others, /proc/net/arp lists the entries of that namespace.
func (f *Facts) readNeighbors(h reader) {
	f.Neighbors = map[inet.Family]int{}
	if f.Sysctls[neighborLimits[inet.IPv4]] == "" {
		f.unread("neighbor tables", errors.New("only the machine's own network namespace shows their limits (gc_thresh3)"))
		return
	}
	for _, family := range inet.Families {
		if family == inet.IPv6 && f.Sysctls[neighborLimits[family]] == "" {
			continue // this kernel has no IPv6
		}
		subject := "neighbor table of " + family.String()
		if text, exists := h.may(neighborCounts[family], subject); exists {
			f.Neighbors[family] = firstOfSecondLine(text)
			continue
		}
		if family == inet.IPv6 {
			f.unread(subject, errors.New("only the machine's own network namespace shows it"))
			continue
		}
		f.Neighbors[family] = max(strings.Count(h.must("/proc/net/arp", subject), "\n")-1, 0) // the first line is the header
	}
}

// firstOfSecondLine parses the hexadecimal number of entries. The kernel repeats it on a line for each CPU.
func firstOfSecondLine(text string) int {
	_, rest, _ := strings.Cut(text, "\n")
	first, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	n, err := strconv.ParseUint(first, 16, 32)
	if err != nil {
		return 0
	}
	return int(n)
}

func (f *Facts) readClock(h reader) {
	synchronized, err := h.ClockSynchronized()
	if err != nil {
		f.unread("clock", err)
		return
	}
	f.ClockFree = !synchronized
}

func (f *Facts) readLeftovers(h reader) {
	var err error
	if f.Leftovers, err = h.Leftovers(); err != nil {
		f.unread("rules and sets of kube-proxy", err)
	}
}

// parsePorts reads "8080,9000-9010", and "32768 60999" with spaces.
func parsePorts(text string) (kernel.Ports, error) {
	return kernel.ParsePorts(strings.Join(strings.Fields(text), "-"))
}
