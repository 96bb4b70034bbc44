package doctor

import (
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

const (
	memoryLow     = 5  // percent
	neighborsHigh = 80 // percent
	// ipvsPriority is the priority of IPVS in the hook INPUT.
	ipvsPriority = 98
)

// overheads are the bytes that a tunnel adds to a packet over IPv4.
var overheads = map[string]int{"vxlan": 50, "geneve": 50, "wireguard": 60, "ipip": 20, "gre": 24}

// checkMTU finds tunnels whose packets are too large for the widest uplink.
func checkMTU(f Facts) []finding.Finding {
	widest := 0
	for _, i := range f.Interfaces {
		for _, uplink := range f.Uplinks {
			if i.Name == uplink && i.Kind == "" {
				widest = max(widest, i.MTU)
			}
		}
	}
	var evidence []string
	for _, i := range f.Interfaces {
		if more := overheads[i.Kind]; widest > 0 && more > 0 && i.MTU+more > widest {
			evidence = append(evidence, fmt.Sprintf("%s (%s) has MTU %d and adds %d bytes, the uplink has MTU %d", i.Name, i.Kind, i.MTU, more, widest))
		}
	}
	if len(evidence) == 0 {
		return nil
	}
	return finding.One(finding.Warning, "MTU", "too large on tunnels to other nodes; large packets to endpoints there are fragmented or lost", examples(evidence),
		"set the MTU of pods in the network plugin to at most the uplink's MTU less the tunnel's bytes")
}

// checkClock finds a clock that nothing corrects: certificates and tokens are valid only at the right time.
func checkClock(f Facts) []finding.Finding {
	var found []finding.Finding
	for _, c := range f.Certificates {
		if f.Now.Before(c.Begins) {
			found = append(found, finding.New(finding.Broken, "clock", "earlier than the beginning of a certificate that the agent uses",
				[]string{fmt.Sprintf("the clock says %s", f.Now.UTC().Format(timeFormat)), fmt.Sprintf("%s begins %s", c.File, c.Begins.UTC().Format(timeFormat))},
				"set the clock, and start a time service such as chronyd"))
		}
	}
	if f.ClockFree && len(found) == 0 {
		found = append(found, finding.New(finding.Notice, "clock", "no time service keeps it right; certificates and tokens fail if it is wrong",
			[]string{"the kernel reports an unsynchronized clock"}, "start a time service such as chronyd or systemd-timesyncd"))
	}
	return found
}

const timeFormat = "2006-01-02T15:04:05Z"

func checkMemory(f Facts) []finding.Finding {
	if f.Memory == 0 || f.MemoryLeft*100 >= f.Memory*memoryLow {
		return nil
	}
	return finding.One(finding.Warning, "memory", "nearly used up on this node; the kernel may kill the agent, or refuse new connections",
		[]string{fmt.Sprintf("MemAvailable: %d kB", f.MemoryLeft), fmt.Sprintf("MemTotal: %d kB", f.Memory)},
		"find the program that uses it; `kubectl top pod` lists the pods, `ps aux --sort -rss` all processes")
}

// checkNeighbors: packets to an endpoint on a directly connected network need an entry in the neighbor table.
func checkNeighbors(f Facts) []finding.Finding {
	limit, ok := f.number(neighborLimit)
	if !ok || limit == 0 || f.Neighbors*100 < limit*neighborsHigh {
		return nil
	}
	return finding.One(finding.Warning, "neighbor table", "nearly full; when it is full, packets to new neighbors are dropped",
		[]string{fmt.Sprintf("%d entries in /proc/net/arp", f.Neighbors), fmt.Sprintf("%s = %d", neighborLimit, limit)},
		"sysctl -w net.ipv4.neigh.default.gc_thresh3=VALUE, and make it permanent (/etc/sysctl.d)")
}

// checkARP finds nodes that answer ARP requests for every virtual address, beside the program that announces it. If the agent sets these
// sysctls, checkSysctls compares them.
func checkARP(f Facts) []finding.Finding {
	if f.View == nil {
		return nil
	}
	for _, s := range f.View.Base.Sysctls {
		if s.Name == reversePathPrefix+"all"+arpIgnore {
			return nil
		}
	}
	var evidence []string
	for _, uplink := range f.Uplinks {
		for _, s := range []struct {
			name  string
			least int
		}{{arpIgnore, 1}, {arpAnnounce, 2}} {
			all, known := f.number(reversePathPrefix + "all" + s.name)
			own, _ := f.number(reversePathPrefix + uplink + s.name)
			if value := max(own, all); known && value < s.least { // the kernel uses the larger of the two
				evidence = append(evidence, fmt.Sprintf("%s%s%s = %d, must be %d", reversePathPrefix, uplink, s.name, value, s.least))
			}
		}
	}
	if len(evidence) == 0 {
		return nil
	}
	found := finding.New(finding.Notice, "strictARP", "off; this node answers ARP requests for every load balancer address, which misleads clients on its network",
		evidence, "set ipvs.strictARP to true, unless no load balancer address is announced by ARP (MetalLB in layer 2 mode, kube-vip)")
	if len(f.Announcers) > 0 {
		found.Severity, found.Evidence = finding.Warning, append(found.Evidence, f.Announcers...)
	}
	return []finding.Finding{found}
}

// checkNFTables finds native nftables chains that a packet passes before it is balanced. Their rules are not evaluated.
func checkNFTables(f Facts) []finding.Finding {
	var all, some []string
	for _, c := range f.Chains {
		before := c.Hook == kernel.HookPrerouting || c.Hook == kernel.HookInput && c.Priority < ipvsPriority
		switch {
		case !before || c.Table == "kube-proxy": // reported as another proxy
		case c.Rules == 0 && c.Drops:
			all = append(all, c.String())
		case c.Rules > 0:
			some = append(some, fmt.Sprintf("%s (%d rules)", c, c.Rules))
		}
	}
	var found []finding.Finding
	if len(all) > 0 {
		found = append(found, finding.New(finding.Broken, "firewall", "an nftables chain without rules drops every packet", examples(all),
			"add rules that accept traffic, or delete the chain; the evidence is the command that shows it"))
	}
	if len(some) > 0 {
		found = append(found, finding.New(finding.Notice, "firewall", "nftables rules see packets before they are balanced; doctor does not evaluate them", examples(some),
			"if connections fail, look at these rules; the evidence is the command that shows them"))
	}
	return found
}
