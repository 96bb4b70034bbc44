package preflight

import (
	"context"
	"errors"
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft"
)

func probeNFTables(ctx context.Context, families []inet.Family, objects Objects, mode kernel.Mode) error {
	b, err := nft.New(families, nil)
	if err != nil {
		return err
	}
	tried := b.Try(ctx, objects.Sets, objects.Rulesets)
	if tried == nil && mode.NFTablesBalances() {
		tried = b.TryBalancing(ctx)
	}
	return errors.Join(tried, b.Close())
}

func lackingRules(f facts, needs Needs, chosen Choice) []finding.Finding {
	if chosen.Mode.RulesInNFTables() {
		return lackingNFTables(f, needs, chosen)
	}
	return append(lackingSets(f), lackingTools(f, needs)...)
}

func lackingNFTables(f facts, needs Needs, chosen Choice) []finding.Finding {
	var found []finding.Finding
	why, canChange := chosen.WhyRules, !chosen.Mode.NFTablesBalances()
	if f.nftables != nil {
		fix := "on the host, load the modules nf_tables, nft_ct, nft_chain_nat, nft_masq, nft_reject_inet and nft_fib_inet"
		if canChange && needs.Rules != kernel.RulesNFTables {
			fix += ", or " + iptables.Install + ", and ipset in the kernel"
		}
		found = append(found, broken("nftables", fmt.Sprintf("used because %s, but %v", why, f.nftables), fix))
	}
	if needs.AcceptServices {
		fix := "allow Service traffic in the host's firewall (docs/coexistence.md) and turn the setting off"
		if canChange {
			fix += ", or use --rules=iptables"
		}
		found = append(found, broken("accept-service-traffic",
			fmt.Sprintf("cannot work with nftables (used because %s): rules in one table cannot override a drop in another", why), fix))
	}
	return found
}
