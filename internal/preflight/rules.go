package preflight

import (
	"context"
	"errors"
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft"
)

// Rules says where this node keeps the agent's sets and rules.
type Rules struct {
	// NFTables: in nftables; otherwise in ipset and iptables.
	NFTables bool
	// Why is the reason, for the log.
	Why string
	// Variant and Version of iptables.
	Variant iptables.Variant
	Version string
	// Families that may work, and why the others do not.
	Families []inet.Family
	Without  map[inet.Family]error
	// Unsure says of which of the Families the programs have just failed, and why: that may pass.
	Unsure map[inet.Family]error
}

// Name is nftables, iptables-nft or iptables-legacy.
func (r Rules) Name() string {
	if r.NFTables {
		return kernel.RulesNFTables
	}
	return kernel.RulesIPTables + "-" + string(r.Variant)
}

// String also has the version and the reason.
func (r Rules) String() string {
	if r.NFTables {
		return fmt.Sprintf("%s (%s)", r.Name(), r.Why)
	}
	return fmt.Sprintf("%s %s (%s)", r.Name(), r.Version, r.Why)
}

// chooseRules decides by the setting, and with kernel.RulesAuto by what the node has: nftables where iptables or ipset is missing. Programs
// that have just failed are not missing.
func chooseRules(setting string, f facts, plane DataPlane) (Rules, error) {
	nftables, why := choose(setting, f)
	if !nftables {
		if f.iptables != nil {
			return Rules{}, fmt.Errorf("find this node's iptables: %w", f.iptables)
		}
		d := f.detected
		return Rules{Why: why, Variant: d.Variant, Version: d.Version, Families: d.Families, Without: d.Without, Unsure: d.Unsure}, nil
	}
	if plane.NFTables {
		why = "nftables balances connections"
	}
	r := Rules{NFTables: true, Why: why, Families: inet.Families, Without: map[inet.Family]error{}}
	if !iptables.KernelHasIPv6() {
		r.Families, r.Without[inet.IPv6] = []inet.Family{inet.IPv4}, iptables.ErrNoIPv6
	}
	return r, nil
}

// choose decides by what the probes have found.
func choose(setting string, f facts) (nftables bool, why string) {
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

// probeRules finds out what choose needs to know.
func probeRules(ctx context.Context, setting string) (f facts) {
	if setting == kernel.RulesNFTables {
		return f
	}
	f.detected, f.iptables = iptables.Detect(ctx)
	f.setTypes = probeSetTypes(ctx)
	// The kernel can only be asked for single extensions through nftables; a legacy restore names what it misses.
	if f.iptables == nil && f.detected.Variant == iptables.NFT {
		f.extensions = probeExtensions(ctx)
	}
	return f
}

// probeNFTables lets the kernel try the agent's sets and rules.
func probeNFTables(ctx context.Context, needs Needs, plane DataPlane) error {
	b, err := nft.New(needs.Families, nil)
	if err != nil {
		return err
	}
	tried := b.Try(ctx, needs.Sets, needs.Rulesets)
	if tried == nil && plane.NFTables {
		tried = b.TryBalancing(ctx)
	}
	return errors.Join(tried, b.Close())
}

// lackingRules are the findings about where the node keeps sets and rules.
func lackingRules(f facts, needs Needs) []Finding {
	if nftables, why := choose(needs.Rules, f); nftables {
		return lackingNFTables(f, needs, why)
	}
	return append(lackingSets(f), lackingTools(f, needs)...)
}

func lackingNFTables(f facts, needs Needs, why string) []Finding {
	var found []Finding
	if f.nftables != nil {
		fix := "load on the host the modules nf_tables, nft_ct, nft_chain_nat, nft_masq, nft_reject_inet and nft_fib_inet"
		if needs.Rules != kernel.RulesNFTables {
			fix += ", or " + iptables.Install + ", and ipset in the kernel"
		}
		found = append(found, Finding{"nftables", fmt.Sprintf("used because %s, but %v", why, f.nftables), fix, true})
	}
	if needs.AcceptServices {
		found = append(found, Finding{"accept-service-traffic",
			fmt.Sprintf("cannot work with nftables (used because %s): no rule of one table overrides the drop of another", why),
			"allow Service traffic in the host's firewall (docs/coexistence.md) and switch the setting off, or use --rules=iptables", true})
	}
	return found
}
