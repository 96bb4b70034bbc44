package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// counter identifies a counter of dropped packets. A counter of an interface has the interface's name, or its index if it is of a queue.
type counter struct {
	name  string
	iface string
	index int
}

// meanings are the counters that doctor reads, with the reason for which the kernel drops packets. The names are unique among the files.
var meanings = map[string]string{
	// /proc/net/netstat
	"IPReversePathFilter": "the reverse path filter (rp_filter) rejected packets, because the route to their sender uses another interface",
	"InNoRoutes":          "there was no route for packets that arrived",
	"InTruncatedPkts":     "packets arrived truncated",
	"ListenDrops":         "a program on this node did not accept connections in time",
	"TCPMemoryPressures":  "TCP's memory is nearly used up (net/ipv4/tcp_mem)",
	"TCPAbortOnMemory":    "TCP's memory is used up (net/ipv4/tcp_mem)",
	// /proc/net/snmp
	"InHdrErrors":  "the TTL of packets had expired, or their headers were wrong",
	"InAddrErrors": "packets arrived for an address that this node neither has nor forwards to",
	"InDiscards":   "the kernel dropped packets that arrived",
	"OutDiscards":  "the kernel dropped packets that it sent: a queue or the neighbor table was full",
	"OutNoRoutes":  "there was no route for packets that this node sent",
	"FragFails":    "packets were larger than the MTU of the next interface, and must not be fragmented",
	"ReasmFails":   "fragments of packets were missing",
	"InCsumErrors": "checksums were wrong; an interface or a tunnel may offload them wrongly",
	// /proc/net/snmp6
	"Ip6InHdrErrors":      "the hop limit of IPv6 packets had expired, or their headers were wrong",
	"Ip6InTooBigErrors":   "IPv6 packets were larger than the MTU of the next interface",
	"Ip6InNoRoutes":       "there was no route for IPv6 packets that arrived",
	"Ip6InAddrErrors":     "IPv6 packets arrived for an address that this node neither has nor forwards to",
	"Ip6InDiscards":       "the kernel dropped IPv6 packets that arrived",
	"Ip6OutDiscards":      "the kernel dropped IPv6 packets that it sent: a queue or the neighbor table was full",
	"Ip6OutNoRoutes":      "there was no route for IPv6 packets that this node sent",
	"Ip6FragFails":        "the kernel could not fragment IPv6 packets",
	"in_martian_src":      "packets arrived with a source address that is impossible on that interface; it may be this node's own, or another machine may use it, too",
	"in_martian_dst":      "packets arrived with an impossible destination address",
	"table_fulls":         "the neighbor table was full (gc_thresh3)",
	"unresolved_discards": "packets were dropped while the kernel waited for a neighbor's MAC address",
	// /proc/net/stat/nf_conntrack
	"drop":          "the table of tracked connections was full",
	"early_drop":    "the table of tracked connections was full, and the kernel forgot other connections",
	"insert_failed": "connection tracking could not record connections, often because the port after NAT was in use",
}

// Names of the counters of an interface.
const (
	queueDrops   = "queue"
	receiveDrops = "received packets"
	sendDrops    = "sent packets"
)

// Count reads the drop counters. Call it before and after the test connections: Facts then contain those that grew. They count all traffic, so
// they explain a failed connection, but are no findings.
func (f *Facts) Count(host Host) {
	h := reader{host, f}
	now := h.counters()
	f.grown = map[counter]uint64{}
	for c, n := range now {
		if n > f.counted[c] && f.counted != nil {
			f.grown[c] = n - f.counted[c]
		}
	}
	f.counted = now
}

const dropCounters = "drop counters"

func (r reader) counters() map[counter]uint64 {
	all := map[counter]uint64{}
	count := func(names, values []string, base int) {
		for i := range min(len(names), len(values)) {
			if n, err := strconv.ParseUint(values[i], base, 64); err == nil && meanings[names[i]] != "" {
				all[counter{name: names[i]}] += n
			}
		}
	}
	for _, file := range []string{"/proc/net/netstat", "/proc/net/snmp"} {
		var names []string
		for line := range strings.Lines(r.must(file, dropCounters)) { // each line of values follows a line of names
			fields := strings.Fields(line)
			count(names, fields, 10)
			names = fields
		}
	}
	text, _ := r.may("/proc/net/snmp6", dropCounters) // missing in a kernel without IPv6
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 1 {
			count(fields[:1], fields[1:], 10)
		}
	}
	for _, name := range []string{"rt_cache", "arp_cache", "ndisc_cache", "nf_conntrack"} {
		text, _ := r.may("/proc/net/stat/"+name, dropCounters)
		header, rest, _ := strings.Cut(text, "\n")
		for line := range strings.Lines(rest) { // one for each CPU
			count(strings.Fields(header), strings.Fields(line), 16)
		}
	}
	r.linkCounters(all)
	return all
}

func (r reader) linkCounters(all map[counter]uint64) {
	const received, sent = 3, 11 // columns of /proc/net/dev
	for line := range strings.Lines(r.must("/proc/net/dev", dropCounters)) {
		name, values, _ := strings.Cut(strings.TrimSpace(line), ":")
		if fields := strings.Fields(values); len(fields) > sent {
			for what, column := range map[string]int{receiveDrops: received, sendDrops: sent} {
				if n, err := strconv.ParseUint(fields[column], 10, 64); err == nil && n > 0 {
					all[counter{name: what, iface: name}] = n
				}
			}
		}
	}
	var err error
	if r.f.Queues, err = r.Queues(); err != nil {
		r.f.unread("queueing disciplines", err)
	}
	for _, q := range r.f.Queues {
		all[counter{name: queueDrops, index: q.Interface}] += q.Drops
	}
}

// grownCounters describes the drop counters that grew while doctor connected, of the node and of the interfaces on the way.
func (f *Facts) grownCounters() (all []string) {
	for c, n := range f.grown {
		if meaning := meanings[c.name]; meaning != "" {
			all = append(all, fmt.Sprintf("meanwhile, the counter %s grew by %d: %s", c.name, n, meaning))
		}
	}
	for _, i := range f.devices() {
		if n := f.grown[counter{name: queueDrops, index: i.Index}]; n > 0 {
			all = append(all, fmt.Sprintf("meanwhile, the queue of %s dropped %s (`tc -s qdisc show dev %s`)", i.Name, number(int(n), "packet"), i.Name))
		}
		for _, what := range []string{receiveDrops, sendDrops} {
			if n := f.grown[counter{name: what, iface: i.Name}]; n > 0 {
				all = append(all, fmt.Sprintf("meanwhile, %s dropped %d %s (`ip -s link show %s`)", i.Name, n, what, i.Name))
			}
		}
	}
	slices.Sort(all)
	return all
}
