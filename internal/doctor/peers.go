package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// maxPodDevices limits the interfaces of pods that doctor compares.
const maxPodDevices = 64

// leastDevices is the smallest group in which doctor compares interfaces.
const leastDevices = 3

// podDevices returns interfaces to single pods: the node's ends of veth pairs. If there are many, it returns a sample.
func (f *Facts) podDevices() (all []kernel.Interface) {
	for _, i := range f.Interfaces {
		if i.Kind == "veth" && f.podInterface(i) && !slices.Contains(f.Uplinks, i.Name) {
			all = append(all, i)
		}
	}
	if len(all) <= maxPodDevices {
		return all
	}
	for n := range maxPodDevices {
		all[n] = all[n*len(all)/maxPodDevices]
	}
	return all[:maxPodDevices]
}

// trait is a sysctl of interfaces that has the same value for all pods. Pods lose packets if it is wrong.
type trait struct {
	prefix, suffix, wrong string
	ipv6                  bool
}

func (t trait) sysctl(device string) string { return t.prefix + device + t.suffix }

var traits = []trait{
	{prefix: reversePathPrefix, suffix: "/forwarding", wrong: "0"},
	{prefix: reversePathPrefix, suffix: "/proxy_arp", wrong: "0"},
	{prefix: ipv6Conf, suffix: "/disable_ipv6", wrong: "1", ipv6: true},
}

// checkPodInterfaces compares the interfaces of pods with each other. A network plugin configures them alike; a difference shows what another
// program has changed.
func checkPodInterfaces(f Facts) []finding.Finding {
	groups := map[string][]kernel.Interface{}
	var order, wrong, narrow []string
	for _, i := range f.podDevices() {
		plugin := i.Name[:min(len(i.Name), 3)] // the name's prefix, such as cali, lxc or veth, identifies the plugin
		if groups[plugin] == nil {
			order = append(order, plugin)
		}
		groups[plugin] = append(groups[plugin], i)
		if master, known := f.named(i.Master); known && master.Kind == "bridge" && f.routesTo(i) {
			wrong = append(wrong, fmt.Sprintf("%s belongs to the bridge %s, but the route to the pod leads to %[1]s itself, which then gets no packets", f.pod(i), i.Master))
		}
	}
	for _, plugin := range order {
		if group := groups[plugin]; len(group) >= leastDevices {
			wrong = append(wrong, f.differences(group)...)
			narrow = append(narrow, f.narrow(group)...)
		}
	}
	var found []finding.Finding
	if len(wrong) > 0 {
		found = append(found, finding.New(finding.Warning, "interfaces of pods", "configured differently from those of other pods; their pods may lose packets", examples(wrong),
			"undo the change and stop the program that made it (/etc/sysctl.d, a network service); or delete the pods, so that the network plugin creates new interfaces"))
	}
	if len(narrow) > 0 {
		found = append(found, finding.New(finding.Notice, "MTU of pods", "smaller than that of other pods; larger packets are lost if the pod's own interface has a larger MTU",
			examples(narrow), "if the network plugin has not set this MTU, delete the pods, so that it creates new interfaces"))
	}
	return found
}

// differences lists the differences that make pods lose packets.
func (f *Facts) differences(group []kernel.Interface) (all []string) {
	for _, t := range traits {
		if t.ipv6 && f.IPv6Servers == 0 {
			continue
		}
		for _, i := range f.odd(group, func(i kernel.Interface) state { return stateOf(f.Sysctls[t.sysctl(i.Name)], t.wrong) }) {
			all = append(all, fmt.Sprintf("%s: %s = %s", f.pod(i), t.sysctl(i.Name), t.wrong))
		}
	}
	for _, i := range f.odd(group, func(i kernel.Interface) state { return stateIf(i.Up) }) {
		all = append(all, f.pod(i)+" is down")
	}
	isolated := func(i kernel.Interface) state {
		if !i.Up || len(f.Pods) >= maxPodDevices { // the pods are a sample
			return unknown
		}
		return stateIf(i.Master != "" || f.routesTo(i))
	}
	for _, i := range f.odd(group, isolated) {
		all = append(all, f.pod(i)+" belongs to no bridge, and no route leads to it")
	}
	for _, gateway := range gateways(group) {
		for _, i := range f.odd(group, func(i kernel.Interface) state { return stateIf(has(i, gateway)) }) {
			all = append(all, fmt.Sprintf("%s lacks the address %s, which is the gateway of other pods", f.pod(i), gateway))
		}
	}
	return all
}

// narrow lists the interfaces with a smaller MTU than most.
func (f *Facts) narrow(group []kernel.Interface) (all []string) {
	for _, reference := range group {
		odd := f.odd(group, func(i kernel.Interface) state {
			switch {
			case i.MTU == reference.MTU:
				return right
			case i.MTU < reference.MTU:
				return wrong
			}
			return unknown
		})
		for _, i := range odd {
			all = append(all, fmt.Sprintf("%s has MTU %d, most have MTU %d", f.pod(i), i.MTU, reference.MTU))
		}
		if len(odd) > 0 {
			return all
		}
	}
	return nil
}

type state int

const (
	unknown state = iota
	right
	wrong
)

func stateIf(is bool) state {
	if is {
		return right
	}
	return wrong
}

func stateOf(value, bad string) state {
	switch value {
	case "":
		return unknown
	case bad:
		return wrong
	}
	return right
}

// odd returns the interfaces in the wrong state, if most others are in the right state. If doctor failed to connect to some of the pods, then those
// to which it connected decide.
func (f *Facts) odd(group []kernel.Interface, of func(kernel.Interface) state) (odd []kernel.Interface) {
	rights, reached, failed, contrary := 0, false, false, false
	for _, i := range group {
		answers, fails := f.connected(i)
		switch of(i) {
		case right:
			rights++
			reached = reached || answers && !fails
		case wrong:
			odd = append(odd, i)
			failed, contrary = failed || fails, contrary || answers && !fails
		}
	}
	if failed && reached && !contrary || rights > len(odd) && rights+len(odd) >= leastDevices {
		return odd
	}
	return nil
}

// connected reports whether doctor connected to endpoints behind the interface, and whether attempts timed out.
func (f *Facts) connected(i kernel.Interface) (answers, fails bool) {
	for _, e := range f.Endpoints {
		if !slices.Contains(f.Pods, kernel.Pod{Addr: e.Address.Addr(), Interface: i.Name}) {
			continue
		}
		answers = answers || e.Failure == ""
		fails = fails || strings.Contains(e.Failure, "timeout") || strings.Contains(e.Failure, "no route to host")
	}
	return answers, fails
}

func (f *Facts) routesTo(i kernel.Interface) bool {
	return slices.ContainsFunc(f.Pods, func(p kernel.Pod) bool { return p.Interface == i.Name })
}

// pod names an interface with the pod's addresses.
func (f *Facts) pod(i kernel.Interface) string {
	var addrs []string
	for _, p := range f.Pods {
		if p.Interface == i.Name {
			addrs = append(addrs, p.Addr.String())
		}
	}
	if len(addrs) == 0 {
		return i.Name
	}
	return fmt.Sprintf("%s (pod %s)", i.Name, strings.Join(addrs, ", "))
}

// gateways lists the addresses that may be the gateway of several pods. Other link-local addresses of IPv6 are unique.
func gateways(group []kernel.Interface) (all []netip.Addr) {
	for _, i := range group {
		for _, n := range i.Networks {
			if shared := n.Addr().Is4() || isShortLinkLocal(n.Addr()); shared && !slices.Contains(all, n.Addr()) {
				all = append(all, n.Addr())
			}
		}
	}
	return all
}

func has(i kernel.Interface, addr netip.Addr) bool {
	return slices.ContainsFunc(i.Networks, func(n netip.Prefix) bool { return n.Addr() == addr })
}
