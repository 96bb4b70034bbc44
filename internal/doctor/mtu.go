package doctor

import (
	"errors"
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// overheads are the bytes that a tunnel adds to a packet over IPv4; IPv6 adds 20 more.
var overheads = map[string]int{"vxlan": 50, "geneve": 50, "wireguard": 60, "ipip": 20, "gre": 24, "gretap": 38}

const overIPv6 = 20

// overlays are the tunnel types that network plugins use for pod traffic. Other tunnels, such as a VPN, may lead
// elsewhere.
var overlays = map[string]bool{"vxlan": true, "geneve": true, "ipip": true}

// checkMTU finds tunnels whose packets are too large for the widest uplink, and pods whose packets are too large for the tunnels or the uplink.
func checkMTU(f Facts) []finding.Finding {
	widest, evidence := f.uplinkMTU()
	if widest == 0 {
		return nil
	}
	evidence = append(evidence, f.wideTunnels(widest)...)
	evidence = append(evidence, f.widePods(widest)...)
	if len(evidence) == 0 {
		return nil
	}
	remedy := "in the network plugin, set the pods' MTU to at most the uplink's MTU minus the tunnel's overhead"
	if widest < leastIPv6MTU {
		remedy = fmt.Sprintf("raise the uplink's MTU, usually to 1500: the kernel disables IPv6 on interfaces with an MTU below %d. Without IPv6, you can instead set "+
			"the pods' MTU in the network plugin to at most the uplink's MTU minus the tunnel's overhead", leastIPv6MTU)
	}
	return finding.One(finding.Warning, "MTU", "too large on the path between pods on different nodes; large packets to endpoints on other nodes are fragmented or lost",
		examples(evidence), remedy)
}

// wideTunnels finds tunnels whose packets exceed the uplink's MTU.
func (f *Facts) wideTunnels(widest int) (evidence []string) {
	for _, i := range f.Interfaces {
		more := overheads[i.Kind]
		if more == 0 || !i.Up || i.PerPacket {
			continue
		}
		if f.IPv6Only {
			more += overIPv6
		}
		if i.MTU+more > widest {
			evidence = append(evidence, fmt.Sprintf("%s (%s) has MTU %d and adds %d bytes, but the uplink has MTU %d", i.Name, i.Kind, i.MTU, more, widest))
		}
	}
	return evidence
}

// widePods finds pod interfaces whose packets exceed the overlay's MTU or, if there is no overlay, the uplink's MTU.
func (f *Facts) widePods(widest int) (evidence []string) {
	path, through := widest, "the uplink"
	for _, i := range f.Interfaces {
		if overlays[i.Kind] && i.Up && i.MTU < path {
			path, through = i.MTU, i.Name
		}
	}
	for _, i := range f.Interfaces {
		if f.podInterface(i) && i.Up && i.MTU > path && !f.plugin() {
			evidence = append(evidence, fmt.Sprintf("%s (%s), which leads to pods, has MTU %d, but %s has MTU %d", i.Name, i.Kind, i.MTU, through, path))
		}
	}
	return evidence
}

// uplinkMTU returns the MTU of the widest uplink, or 0 if it is unknown, and the defects of the uplinks themselves.
func (f *Facts) uplinkMTU() (widest int, wrong []string) {
	for _, name := range f.Uplinks {
		uplink, known := f.named(name)
		if !known {
			continue
		}
		least := uplink
		for _, i := range f.Interfaces {
			if below(i, uplink) && i.Up && i.MTU < least.MTU {
				least = i
			}
		}
		if least.MTU < uplink.MTU {
			wrong = append(wrong, fmt.Sprintf("%s (%s) has MTU %d, but its packets leave through %s with MTU %d", name, uplink.Kind, uplink.MTU, least.Name, least.MTU))
		}
		widest = max(widest, least.MTU)
	}
	return widest, wrong
}

func (f *Facts) named(name string) (kernel.Interface, bool) {
	for _, i := range f.Interfaces {
		if i.Name == name {
			return i, true
		}
	}
	return kernel.Interface{}, false
}

// plugin reports whether the network plugin limits the packet size in the pods' routes and uses tunnels without an MTU.
func (f *Facts) plugin() bool {
	for _, i := range f.Interfaces {
		if i.PerPacket && i.Up {
			return true
		}
	}
	return false
}

// noteMTU reports the MTU of pods as unread if checkMTU cannot check it.
func (f *Facts) noteMTU() {
	if f.plugin() {
		f.unread("MTU of pods", errors.New("the network plugin sets it in the pods' routes, which doctor does not read"))
	}
}
