package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/daemon"
	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/machine"
	"github.com/kube-ipvs/kube-ipvs/internal/preflight"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

func newPreflight(m *machine.Machine) *cobra.Command {
	var flags config.Flags
	var output string
	cmd := &cobra.Command{
		Use:   "preflight",
		Short: "Check whether this node can serve Services, and show how to fix it",
		Long: `preflight checks this node for everything that the agent uses: kernel modules, schedulers, set types,
iptables or nftables, capabilities and sysctls. It changes nothing, but a check can load a kernel
module. The exit status is 1 if the node lacks something that every Service needs.

preflight accepts all flags of an agent. Flags that are not listed have no effect.`,
		Example: "  kube-ipvs preflight\n  kube-ipvs preflight --ipvs-scheduler wlc -o json",
		Args:    noArguments,
		RunE: withSettings(&flags, func(cmd *cobra.Command, settings *config.Settings) error {
			found := m.Preflight(cmd.Context(), settings)
			document := list[finding.Finding]{view.HeaderOf("FindingList"), append([]finding.Finding{}, found.Findings...)}
			err := printAs(cmd.OutOrStdout(), output, document, func(w io.Writer) error { return printPreflight(w, found) })
			return errors.Join(err, daemon.Fatal(found.Findings))
		}),
	}
	flags.AddAgent(cmd.Flags())
	addOutput(cmd, &output)
	return cmd
}

func printPreflight(w io.Writer, found preflight.Result) error {
	if len(found.Findings) == 0 || found.Findings[0].Severity == finding.Notice {
		fmt.Fprintln(w, "nothing is missing")
	}
	err := finding.Print(w, found.Findings)
	if found.Mode.NFTablesBalances() {
		fmt.Fprintf(w, "connections are balanced by %s\n", found.DataPlane())
	}
	if found.Mode.RulesInNFTables() {
		fmt.Fprintf(w, "sets and rules are kept in %s\n", found.Rules())
	}
	return err
}
