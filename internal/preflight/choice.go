package preflight

import (
	"errors"
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
)

// Choice is the mode in which this node serves Services.
type Choice struct {
	Mode                   kernel.Mode
	WhyDataPlane, WhyRules string
	Variant                iptables.Variant
	Version                string
	// Families are the address families that should work. Without contains the families that do not work, with the
	// reasons.
	Families []inet.Family
	Without  map[inet.Family]error
	// Unsure contains the Families whose iptables programs have just failed, with the errors. The failures may be
	// temporary.
	Unsure map[inet.Family]error
}

// DataPlane returns the part of the kernel that balances connections, with the reason.
func (c Choice) DataPlane() string { return fmt.Sprintf("%s (%s)", c.Mode.DataPlane(), c.WhyDataPlane) }

// RulesName returns nftables, iptables-nft, iptables-legacy or none.
func (c Choice) RulesName() string {
	if rules := c.Mode.Rules(); rules != kernel.RulesIPTables {
		return rules
	}
	return kernel.RulesIPTables + "-" + string(c.Variant)
}

// Rules returns RulesName with the version and the reason.
func (c Choice) Rules() string {
	if c.Mode.Rules() != kernel.RulesIPTables {
		return fmt.Sprintf("%s (%s)", c.RulesName(), c.WhyRules)
	}
	return fmt.Sprintf("%s %s (%s)", c.RulesName(), c.Version, c.WhyRules)
}

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

// For kernel.DataPlaneAuto, nftablesBalances selects nftables only if the kernel lacks IPVS and cannot load it. After
// any other error it selects IPVS, because the error may be temporary.
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

// For kernel.RulesAuto, rulesInNFTables selects nftables if iptables or ipset is missing. Programs that have just
// failed do not count as missing.
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
			if f.needs(e) && errors.Is(f.extensions[e], errAbsent) {
				return true, "the kernel has no module " + e.module
			}
		}
	}
	return false, f.detected.Why
}
