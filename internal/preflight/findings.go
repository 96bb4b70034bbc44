package preflight

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

func broken(subject, problem, remedy string) finding.Finding {
	return finding.New(finding.Broken, subject, problem, nil, remedy)
}

func warning(subject, problem, remedy string) finding.Finding {
	return finding.New(finding.Warning, subject, problem, nil, remedy)
}

func lack(needed bool, subject, problem, remedy string) finding.Finding {
	if needed {
		return broken(subject, problem, remedy)
	}
	return warning(subject, problem, remedy)
}

func findings(f facts, needs Needs, sysctls []kernel.SysctlSetting, chosen Choice) []finding.Finding {
	lacking := lackingCapabilities(f, chosen.Mode)
	if f.capabilities&(1<<unix.CAP_NET_ADMIN) == 0 {
		return lacking // no other probe works without it
	}
	return slices.Concat(
		lacking,
		lackingModules(f, needs, chosen.Mode),
		lackingRules(f, needs, chosen),
		lackingSysctls(f, sysctls),
		lackingIPv6(f, needs),
		unfilteredBridges(f, needs),
		kernelFaults(f.kernel, !chosen.Mode.NFTablesBalances(), slices.Contains(needs.Families, inet.IPv6)),
	)
}

// capability is a capability of a process. problem is what does not work without it.
type capability struct {
	bit           uint
	name, problem string
}

func lackingCapabilities(f facts, mode kernel.Mode) []finding.Finding {
	needed := []capability{{unix.CAP_NET_ADMIN, "NET_ADMIN", "missing; the agent can neither read nor change kernel state"}}
	if !mode.RulesInNFTables() {
		needed = append(needed, capability{unix.CAP_NET_RAW, "NET_RAW", "missing; iptables cannot create rules that match ipsets"})
	}
	return lackingOf(needed, f.capabilities, "run as root, or add %s to the container's securityContext.capabilities.add")
}

// lackingOf returns a finding for each missing capability. The remedy may contain %s for its name.
func lackingOf(needed []capability, had uint64, remedy string) (found []finding.Finding) {
	for _, c := range needed {
		if had&(1<<c.bit) == 0 {
			found = append(found, broken("capability "+c.name, c.problem, strings.ReplaceAll(remedy, "%s", c.name)))
		}
	}
	return found
}

func lackingModules(f facts, needs Needs, mode kernel.Mode) []finding.Finding {
	var found []finding.Finding
	switch {
	case mode.NFTablesBalances() && needs.DataPlane == kernel.DataPlaneAuto:
		found = []finding.Finding{warning("kernel module ip_vs", "missing, so nftables balances connections: at random by weight, without schedulers, connection limits or counts",
			"nothing to do if that is sufficient (docs/data-planes.md); otherwise "+kernel.LoadModule("ip_vs")+". A running agent then moves to IPVS")}
	case !mode.NFTablesBalances():
		found = module("ip_vs", f.ipvs, true)
	}
	if f.ipvs == nil && !mode.NFTablesBalances() {
		for _, name := range needs.Schedulers {
			found = append(found, module("ip_vs_"+name, f.schedulers[name], name == model.LastResort)...)
		}
	}
	if errors.Is(f.dummy, errAbsent) && f.bridge == nil {
		return found
	}
	return append(found, module("dummy", f.dummy, true)...)
}

func lackingSets(f facts) []finding.Finding {
	var found []finding.Finding
	for _, t := range setTypes {
		found = append(found, module(setModule(t), f.setTypes[t], true)...)
	}
	return found
}

func setModule(t kernel.SetType) string {
	method, fields, _ := strings.Cut(string(t), ":")
	return "ip_set_" + method + "_" + strings.ReplaceAll(fields, ",", "")
}

func module(name string, err error, needed bool) []finding.Finding {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errAbsent):
		return []finding.Finding{lack(needed, "kernel module "+name, "missing, and the kernel could not load it", kernel.LoadModule(name))}
	}
	return []finding.Finding{warning("kernel module "+name, fmt.Sprintf("could not be checked: %v", err), "fix the cause of the error")}
}

func lackingTools(f facts, needs Needs) []finding.Finding {
	switch {
	case errors.Is(f.iptables, iptables.ErrNotInstalled):
		return []finding.Finding{broken("iptables", iptables.ErrNotInstalled.Error(), iptables.Install)}
	case f.iptables != nil:
		return []finding.Finding{broken("iptables", f.iptables.Error(),
			"unless the error says otherwise, load the module nf_tables on the host, or ip_tables for iptables-legacy")}
	}
	var found []finding.Finding
	for _, family := range needs.Families {
		if err := f.detected.Without[family]; err != nil {
			found = append(found, warning("iptables for "+family.String(), err.Error(),
				family.String()+" Services are not served; ignore this if the cluster has no such Services"))
		}
	}
	for _, family := range needs.Families {
		if err := f.detected.Unsure[family]; err != nil {
			found = append(found, warning("iptables for "+family.String(), err.Error(),
				"the agent uses it anyway, because the failure may be temporary; if it persists, fix the cause of the error, or use --rules=nftables"))
		}
	}
	for _, e := range extensions {
		if err, asked := f.extensions[e]; asked {
			found = append(found, module(e.module, err, f.needs(e))...)
		}
	}
	return found
}

func lackingSysctls(f facts, wanted []kernel.SysctlSetting) []finding.Finding {
	var found []finding.Finding
	for _, s := range wanted {
		have, exists := f.sysctls[s.Name]
		vs := strings.HasPrefix(s.Name, "net/ipv4/vs/")
		switch {
		case !exists && vs && f.ipvs != nil:
		case !exists:
			remedy := "use a newer kernel; settings in net/ipv4/vs also need CONFIG_IP_VS_NFCT and the host's user namespace"
			if s.Optional {
				remedy = "use a newer kernel, or " + s.Keep()
			}
			found = append(found, warning("sysctl "+s.Name, "does not exist in this kernel", remedy))
		case have.value != s.Value && !have.writable:
			why, remedy := " in this container", "mount the host's /proc/sys/net writable at /host/proc/sys/net, or "
			if have.fixed {
				why, remedy = " outside the host's network namespace", "run the agent there (hostNetwork: true), or "
			}
			remedy += fmt.Sprintf("run `sysctl -w %s=%s` on the host", s.Name, s.Value)
			if s.Optional {
				remedy += ", or " + s.Keep()
			}
			found = append(found, lack(!s.Optional, "sysctl "+s.Name,
				fmt.Sprintf("is %s, must be %s, and is not writable%s", have.value, s.Value, why), remedy))
		}
	}
	return found
}

func lackingIPv6(f facts, needs Needs) []finding.Finding {
	if f.ipv6 || !slices.Contains(needs.Families, inet.IPv6) {
		return nil
	}
	return []finding.Finding{warning("IPv6", "disabled on this host, so IPv6 Services are not served",
		"run `sysctl -w net.ipv6.conf.all.disable_ipv6=0` on the host, which enables it on existing and new interfaces, boot without ipv6.disable=1, and restart the agent; "+
			"ignore this if the cluster has no IPv6 Services")}
}

// unfilteredBridges finds pod bridges whose traffic between ports bypasses netfilter. If a client and an endpoint of
// a Service are both on such a bridge, the reply comes from the endpoint's address instead of the Service's.
func unfilteredBridges(f facts, needs Needs) []finding.Finding {
	var found []finding.Finding
	for _, b := range f.bridges {
		for _, family := range b.Families {
			if b.Filtered[family] || !b.Containers || !slices.Contains(needs.Families, family) {
				continue
			}
			found = append(found, warning("bridge "+b.Name,
				fmt.Sprintf("netfilter does not process %s packets between its ports, so pods on it cannot reach each other through a Service", family),
				"run `"+kernel.FilterBridges(family)+"` on the host, and make both permanent (/etc/modules-load.d, /etc/sysctl.d); "+
					"ignore this if no pods are on the bridge"))
		}
	}
	return found
}
