package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

const (
	disableIPv6 = "/disable_ipv6"
	allIPv6Off  = ipv6Conf + "all" + disableIPv6
	// The kernel disables IPv6 on interfaces with a smaller MTU.
	leastIPv6MTU = 1280
)

// checkIPv6 finds interfaces without IPv6 on a node that serves IPv6 virtual servers. IPv6 packets of the node to itself pass lo.
func checkIPv6(f Facts) []finding.Finding {
	if f.IPv6Servers == 0 {
		return nil
	}
	var off []string
	for _, name := range []string{kernel.Device, "lo"} {
		off = append(off, f.withoutIPv6(name)...)
	}
	var uplinks []string
	for _, name := range f.Uplinks {
		why := f.withoutIPv6(name)
		if len(why) == 0 {
			uplinks = nil // this uplink carries IPv6
			break
		}
		uplinks = append(uplinks, why...)
	}
	severity := finding.Warning // the IPv6 traffic may use other interfaces
	if len(off) > 0 {
		severity = finding.Broken
	}
	if off = append(off, uplinks...); len(off) == 0 {
		return nil
	}
	if f.Sysctls[allIPv6Off] == "1" {
		off = append(off, allIPv6Off+" = 1; setting it changed all interfaces")
	}
	return finding.One(severity, "IPv6 on interfaces", fmt.Sprintf("disabled, and this node serves %s", number(f.IPv6Servers, "IPv6 virtual server")), examples(off),
		"set these sysctls to 0 (net.ipv6.conf.all.disable_ipv6=0 sets all interfaces) or raise the MTU; the agent then adds its addresses, but you must add "+
			"the lost addresses and routes of other interfaces again")
}

// withoutIPv6 returns the reason why an interface has no IPv6. A reason that the agent has reported is omitted.
func (f *Facts) withoutIPv6(name string) (why []string) {
	if sysctl := ipv6Conf + name + disableIPv6; f.Sysctls[sysctl] == "1" && !f.reported(name+".disable_ipv6") {
		why = append(why, sysctl+" = 1")
	}
	if i, exists := f.named(name); exists && i.MTU > 0 && i.MTU < leastIPv6MTU {
		why = append(why, fmt.Sprintf("%s has MTU %d, and IPv6 needs %d", name, i.MTU, leastIPv6MTU))
	}
	return why
}

func (f *Facts) reported(part string) bool {
	return f.View != nil && slices.ContainsFunc(f.View.Problems, func(text string) bool { return strings.Contains(text, part) })
}
