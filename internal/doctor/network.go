package doctor

import (
	"fmt"
	"strings"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

const (
	memoryLow     = 5  // percent
	neighborsHigh = 80 // percent
	// clockLeeway is the tolerated lag behind the API server's clock.
	clockLeeway = time.Minute
)

// checkClock finds a clock that is wrong or not synchronized: certificates and tokens fail on a node with the wrong time.
func checkClock(f Facts) []finding.Finding {
	var found []finding.Finding
	for _, c := range f.Credentials {
		if f.Now.Add(clockLeeway).Before(c.Begins) {
			found = append(found, finding.New(finding.Broken, "clock", "behind; a certificate or token that the agent uses is not valid yet",
				[]string{fmt.Sprintf("the clock says %s", f.Now.UTC().Format(timeFormat)), fmt.Sprintf("%s is valid from %s", c.Name, c.Begins.UTC().Format(timeFormat))},
				"set the clock, and start a time service such as chronyd"))
		}
	}
	if f.ClockFree && len(found) == 0 {
		found = append(found, finding.New(finding.Notice, "clock", "no time service corrects it; certificates and tokens fail if it is wrong",
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

// lowTTL is low for the number of routers that a packet may pass; 64 is the default.
const lowTTL = 32

// checkLimits finds settings that limit the node's own connections: few local ports, or packets that die on the way.
func checkLimits(f Facts) (found []finding.Finding) {
	if ttl, known := f.number(defaultTTL); known && ttl < lowTTL {
		found = append(found, finding.New(finding.Warning, "sysctl "+defaultTTL, fmt.Sprintf("is %d; after as many routers, this node's packets are dropped", ttl),
			nil, "set it to 64, and find the program that has changed it (/etc/sysctl.d)"))
	}
	free, sysctls, known := f.freePorts()
	if ports := free.Count(); known && ports < explain.FewPorts {
		found = append(found, finding.New(finding.Warning, "local ports", "only "+number(ports, "port")+" for this node's own connections; when all are in use, new connections fail",
			sysctls, "widen the range; the kernel's default is 32768 to 60999"))
	}
	return found
}

// freePorts returns the ports that the kernel chooses from for this node's own connections, and the sysctls that determine them.
func (f *Facts) freePorts() (free kernel.Ports, sysctls []string, known bool) {
	all, err := parsePorts(f.Sysctls[localPorts])
	reserved, err2 := parsePorts(f.Sysctls[reservedPorts])
	if len(all) != 1 || err != nil || err2 != nil {
		return nil, nil, false
	}
	return all.Without(reserved), []string{localPorts + " = " + f.Sysctls[localPorts], reservedPorts + " = " + f.Sysctls[reservedPorts]}, true
}

// checkNeighbors finds a nearly full neighbor table. Packets to an endpoint on a directly connected network need an
// entry in it.
func checkNeighbors(f Facts) (found []finding.Finding) {
	for _, family := range inet.Families {
		sysctl := neighborLimits[family]
		limit, ok := f.number(sysctl)
		if !ok || limit == 0 || f.Neighbors[family]*100 < limit*neighborsHigh {
			continue
		}
		found = append(found, finding.New(finding.Warning, "neighbor table of "+family.String(), "nearly full; when it is full, packets to new neighbors are dropped",
			[]string{fmt.Sprintf("%d entries", f.Neighbors[family]), fmt.Sprintf("%s = %d", sysctl, limit)},
			fmt.Sprintf("run `sysctl -w %s=%d`, and make it permanent (/etc/sysctl.d)", strings.ReplaceAll(sysctl, "/", "."), 4*max(limit, f.Neighbors[family]))))
	}
	return found
}

// checkForwarding finds interfaces on which forwarding is off although it is on for the node: a network service may
// have reset it.
func checkForwarding(f Facts) (found []finding.Finding) {
	var off []string
	for _, name := range f.routed() {
		if sysctl := reversePathPrefix + name + "/forwarding"; f.Sysctls[sysctl] == "0" && f.Sysctls[reversePathPrefix+"all/forwarding"] == "1" {
			off = append(off, sysctl+" = 0")
		}
	}
	if f.IPv6Servers > 0 && f.Sysctls[ipv6Forwarding] == "0" {
		off = append(off, fmt.Sprintf("%s = 0, and this node serves %d IPv6 virtual servers", ipv6Forwarding, f.IPv6Servers))
	}
	if len(off) > 0 {
		found = finding.One(finding.Warning, "forwarding", "off; the kernel drops packets to pods and replies from endpoints", off,
			"sysctl -w SYSCTL=1, and make it permanent (/etc/sysctl.d, or IPv4Forwarding= and IPv6Forwarding= of systemd-networkd)")
	}
	var lost []string
	for _, name := range f.Advertised {
		if sysctl := ipv6Conf + name + acceptRA; f.Sysctls[sysctl] == "1" && f.Sysctls[ipv6Forwarding] == "1" {
			lost = append(lost, sysctl+" = 1, must be 2")
		}
	}
	if len(lost) > 0 {
		found = append(found, finding.New(finding.Warning, "IPv6 default route", "a router advertises it, but a node that forwards ignores advertisements; the route will expire", lost,
			"sysctl -w net.ipv6.conf.INTERFACE.accept_ra=2, and make it permanent (/etc/sysctl.d)"))
	}
	return found
}

// defaultNodePorts is the API server's default of --service-node-port-range.
var defaultNodePorts = kernel.PortRange{First: 30000, Last: 32767}

// checkLocalPorts finds node ports in the range of local ports. If a connection from this node uses a node port as its
// source port, IPVS sends the replies to a Service. An agent that guards node ports reserves each of them.
func checkLocalPorts(f Facts) []finding.Finding {
	if f.View != nil && f.View.Node.Mode.NFTablesBalances() {
		return nil
	}
	free, sysctls, known := f.freePorts()
	if !known {
		return nil
	}
	guarded := f.View != nil && f.View.Node.ReservesNodePorts
	var atRisk kernel.Ports
	var evidence []string
	for _, r := range free.Common(kernel.Ports{defaultNodePorts}) {
		if !guarded {
			atRisk = append(atRisk, r)
			evidence = append(evidence, fmt.Sprintf("the ports %d-%d are also in the default range of node ports", r.First, r.Last))
		}
	}
	for _, port := range f.NodePorts {
		if free.Contain(port) && !atRisk.Contain(port) {
			atRisk = append(atRisk, kernel.PortRange{First: port, Last: port})
			evidence = append(evidence, fmt.Sprintf("a Service has the node port %d", port))
		}
	}
	if len(evidence) == 0 {
		return nil
	}
	reserved, _ := parsePorts(f.Sysctls[reservedPorts]) // valid, because the free ports are known
	return finding.One(finding.Warning, "node ports", "this node's own connections may use node ports as source ports; their replies then go to a Service",
		examples(append(sysctls, evidence...)),
		"set the sysctl net.ipv4.ip_local_reserved_ports to "+reserved.With(atRisk).String()+", and make it permanent (/etc/sysctl.d)")
}

// checkARP finds a node that answers ARP requests for every virtual address, although another program announces these
// addresses. If the agent sets the sysctls, checkSysctls covers them.
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
			if value := max(own, all); known && value < s.least { // the kernel uses the larger value
				evidence = append(evidence, fmt.Sprintf("%s%s%s = %d, must be %d", reversePathPrefix, uplink, s.name, value, s.least))
			}
		}
	}
	if len(evidence) == 0 {
		return nil
	}
	found := finding.New(finding.Notice, "strictARP", "off; this node answers ARP requests for every load balancer address, which misleads clients on its network",
		evidence, "if another program announces load balancer addresses by ARP (MetalLB in layer 2 mode, kube-vip), set ipvs.strictARP to true")
	if len(f.Announcers) > 0 {
		found.Severity, found.Evidence = finding.Warning, append(found.Evidence, f.Announcers...)
	}
	return []finding.Finding{found}
}
