package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/daemon"
	"github.com/kube-ipvs/kube-ipvs/internal/finding"
)

func newPreflight(m *machine) *cobra.Command {
	var flags config.Flags
	var output string
	cmd := &cobra.Command{
		Use:   "preflight",
		Short: "Check what this node lacks to serve Services, and how to fix it",
		Long: `preflight checks this node for everything that the agent uses: kernel modules, schedulers, set types,
iptables or nftables, capabilities and sysctls. It changes nothing, but a check can load a kernel
module. Its exit status is 1 if something is missing that every Service needs.`,
		Example: "  kube-ipvs preflight\n  kube-ipvs preflight --ipvs-scheduler wlc -o json",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(cmd, output); err != nil {
				return err
			}
			loaded, err := loadFlags(cmd, &flags)
			if err != nil {
				return err
			}
			found := m.Preflight(cmd.Context(), &loaded.Settings)
			err = errors.Join(printFindings(cmd.OutOrStdout(), output, found.Findings), daemon.Fatal(found.Findings))
			if found.Mode.NFTablesBalances() && output == asText {
				fmt.Fprintf(cmd.OutOrStdout(), "connections are balanced by %s\n", found.DataPlane())
			}
			if found.Mode.RulesInNFTables() && output == asText {
				fmt.Fprintf(cmd.OutOrStdout(), "sets and rules are kept in %s\n", found.Rules())
			}
			return err
		},
	}
	flags.AddCompile(cmd.Flags())
	addOutput(cmd, &output)
	return cmd
}

// findingList is the JSON and YAML output of preflight.
type findingList struct {
	header
	Items []finding.Finding `json:"items"`
}

func printFindings(w io.Writer, output string, found []finding.Finding) error {
	if output != asText {
		return encode(w, output, findingList{headerOf("FindingList"), append([]finding.Finding{}, found...)})
	}
	if len(found) == 0 {
		fmt.Fprintln(w, "nothing is missing")
	}
	return finding.Print(w, found)
}
