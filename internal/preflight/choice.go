package preflight

import (
	"errors"
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
)

// Choice is how this node serves Services. Check makes it, and it stays until a restart.
type Choice struct {
	Mode kernel.Mode
	// WhyDataPlane and WhyRules are the reasons of both parts of the mode.
	WhyDataPlane, WhyRules string
	// Variant and Version of iptables.
	Variant iptables.Variant
	Version string
	// Families that may work, and why the others do not.
	Families []inet.Family
	Without  map[inet.Family]error
	// Unsure says of which of the Families the programs have just failed, and why: that may pass.
	Unsure map[inet.Family]error
}

// DataPlane is what balances connections, with the reason.
func (c Choice) DataPlane() string { return fmt.Sprintf("%s (%s)", c.Mode.DataPlane(), c.WhyDataPlane) }

// RulesName is nftables, iptables-nft or iptables-legacy.
func (c Choice) RulesName() string {
	if c.Mode.RulesInNFTables() {
		return kernel.RulesNFTables
	}
	return kernel.RulesIPTables + "-" + string(c.Variant)
}

// Rules is RulesName with the version and the reason.
func (c Choice) Rules() string {
	if c.Mode.RulesInNFTables() {
		return fmt.Sprintf("%s (%s)", c.RulesName(), c.WhyRules)
	}
	return fmt.Sprintf("%s %s (%s)", c.RulesName(), c.Version, c.WhyRules)
}

// choose decides by the settings and by what the probes have found.
func choose(f facts, needs Needs) Choice {
	var c Choice
	var nftables bool
	if nftables, c.WhyDataPlane = nftablesBalances(needs.DataPlane, f.ipvs); nftables {
		c.Mode, c.WhyRules = kernel.NFTablesOnly, "nftables balances connections"
	} else if nftables, c.WhyRules = rulesInNFTables(needs.Rules, f); nftables {
		c.Mode = kernel.IPVSWithNFTables
	}
	if !nftables {
		d := f.detected
		c.Variant, c.Version, c.Families, c.Without, c.Unsure = d.Variant, d.Version, d.Families, d.Without, d.Unsure
		return c
	}
	c.Families, c.Without = inet.Families, map[inet.Family]error{}
	if !f.kernelIPv6 {
		c.Families, c.Without[inet.IPv6] = []inet.Family{inet.IPv4}, iptables.ErrNoIPv6
	}
	return c
}

// nftablesBalances decides by the setting, and with kernel.DataPlaneAuto by whether the kernel has IPVS or can load it. An error that may be
// gone at the next start does not replace IPVS.
func nftablesBalances(setting string, ipvs error) (nftables bool, why string) {
	switch {
	case setting == kernel.DataPlaneNFTables:
		return true, "--data-plane is nftables"
	case setting != kernel.DataPlaneAuto:
		return false, "--data-plane is ipvs"
	case errors.Is(ipvs, errAbsent):
		return true, "the kernel has no IPVS"
	}
	return false, "the kernel has IPVS"
}

// rulesInNFTables decides by the setting, and with kernel.RulesAuto by what the node has: nftables where iptables or ipset is missing.
// Programs that have just failed are not missing.
func rulesInNFTables(setting string, f facts) (nftables bool, why string) {
	switch {
	case setting == kernel.RulesNFTables:
		return true, "--rules is nftables"
	case setting == kernel.RulesIPTables:
	case errors.Is(f.iptables, iptables.ErrNotInstalled):
		return true, "iptables is not installed"
	case f.iptables != nil:
		return true, fmt.Sprintf("iptables does not work: %v", f.iptables)
	default:
		for _, t := range setTypes {
			if errors.Is(f.setTypes[t], errAbsent) {
				return true, "the kernel has no module " + setModule(t)
			}
		}
		for _, e := range extensions {
			if e.needed && errors.Is(f.extensions[e], errAbsent) {
				return true, "the kernel has no module " + e.module
			}
		}
	}
	return false, f.detected.Why
}
