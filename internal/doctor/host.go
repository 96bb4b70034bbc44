package doctor

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Interface is a network interface.
type Interface struct {
	Name string
	// Kind is the kind of a tunnel; empty for other interfaces.
	Kind string
	MTU  int
}

const (
	neighborLimit = "net/ipv4/neigh/default/gc_thresh3"
	arpIgnore     = "/arp_ignore"
	arpAnnounce   = "/arp_announce"
	// proxySets is the prefix of the ipsets of kube-proxy's ipvs mode.
	proxySets = "KUBE-"
)

// announcers are programs that answer ARP requests for addresses of load balancers: MetalLB's speaker and kube-vip.
var announcers = []string{"speaker", "kube-vip"}

// tunnelTypes are tunnels that have no DEVTYPE: the hardware types in linux/if_arp.h.
var tunnelTypes = map[string]string{"768": "ipip", "778": "gre"}

func (f *Facts) readInterfaces(h Host) {
	const dir = "/sys/class/net"
	names, err := h.Names(dir)
	if err != nil {
		return
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		i := Interface{Name: name}
		i.MTU, _ = strconv.Atoi(word(h, path.Join(dir, name, "mtu")))
		uevent, _ := h.ReadFile(path.Join(dir, name, "uevent"))
		for line := range strings.Lines(string(uevent)) {
			if kind, ok := strings.CutPrefix(strings.TrimSpace(line), "DEVTYPE="); ok {
				i.Kind = kind
			}
		}
		if kind := tunnelTypes[word(h, path.Join(dir, name, "type"))]; kind != "" {
			i.Kind = kind
		}
		f.Interfaces = append(f.Interfaces, i)
	}
}

// word returns the content of a file without surrounding space; empty if it cannot be read.
func word(h Host, file string) string {
	text, _ := h.ReadFile(file)
	return strings.TrimSpace(string(text))
}

func (f *Facts) readMemory(h Host) {
	text, _ := h.ReadFile("/proc/meminfo")
	for line := range strings.Lines(string(text)) {
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
}

func (f *Facts) readNeighbors(h Host) {
	if text, err := h.ReadFile("/proc/net/arp"); err == nil {
		f.Neighbors = max(strings.Count(string(text), "\n")-1, 0) // the first line is the header
	}
}

// readClock notes whether a program keeps the clock right.
func (f *Facts) readClock(h Host) {
	synchronized, err := h.ClockSynchronized()
	if err != nil {
		f.Unread = append(f.Unread, fmt.Sprintf("clock: %v", err))
		return
	}
	f.ClockFree = !synchronized
}

func (f *Facts) readProxySets(h Host) {
	names, err := h.SetNames(proxySets)
	if err != nil {
		f.Unread = append(f.Unread, fmt.Sprintf("ipsets of kube-proxy: %v", err))
		return
	}
	f.ProxySets = names
	slices.Sort(f.ProxySets)
}
