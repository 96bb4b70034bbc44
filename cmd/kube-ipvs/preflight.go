package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/daemon"
	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/machine"
	"github.com/kube-ipvs/kube-ipvs/internal/preflight"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

func newPreflight(m *machine.Machine) *cobra.Command {
	var flags config.Flags
	var output string
	var compare bool
	cmd := &cobra.Command{
		Use:   "preflight",
		Short: "Check whether this node can serve Services, and show how to fix it",
		Long: `preflight checks this node for everything that the agent uses: kernel modules, schedulers, set types,
iptables or nftables, capabilities and sysctls. It changes nothing, but a check can load a kernel
module. The exit status is 1 if the node lacks something that every Service needs.

With --compare, it also reads the Services, from the API server or from --manifests, and compares the
virtual servers of this node's kernel with the ones that an agent would create. On a node that kube-proxy
serves in ipvs mode, this finds what clients would notice: different schedulers, affinity and IPVS
timeouts, ports that would no longer be served, and Services in the ranges of --ipvs-exclude-cidrs. The
exit status is also 1 if there are such ports.

preflight accepts all flags of an agent. Flags that are not listed have no effect.`,
		Example: "  kube-ipvs preflight\n  kube-ipvs preflight --ipvs-scheduler wlc -o json\n" +
			"  kube-ipvs preflight --compare --kubeconfig /etc/kubernetes/kube-ipvs.conf",
		Args: noArguments,
		RunE: withSettings(&flags, func(cmd *cobra.Command, settings *config.Settings) error {
			found := m.Preflight(cmd.Context(), settings)
			if compare && daemon.Fatal(found.Findings) == nil {
				replaces, err := compareServices(cmd, m, settings)
				if err != nil {
					return err
				}
				found.Findings = append(found.Findings, replaces...)
				finding.Sort(found.Findings)
			}
			document := list[finding.Finding]{view.HeaderOf("FindingList"), append([]finding.Finding{}, found.Findings...)}
			err := printAs(cmd.OutOrStdout(), output, document, func(w io.Writer) error { return printPreflight(w, found) })
			return errors.Join(err, daemon.Fatal(found.Findings))
		}),
	}
	flags.AddAgent(cmd.Flags())
	cmd.Flags().BoolVar(&compare, "compare", false, "also compare the Services with the virtual servers of this node's kernel")
	addOutput(cmd, &output)
	return cmd
}

// compareServices finds what clients would notice if an agent took over this node.
func compareServices(cmd *cobra.Command, m *machine.Machine, settings *config.Settings) ([]finding.Finding, error) {
	if err := checkManifests(settings); err != nil {
		return nil, err
	}
	log, _, err := newLogger(cmd.ErrOrStderr(), "error", "text")
	if err != nil {
		return nil, err
	}
	node, err := daemon.OpenNode(cmd.Context(), m.Machine, settings, log)
	if err != nil {
		return nil, err
	}
	defer node.Close(log)
	if node.Mode.NFTablesBalances() {
		return nil, errors.New("--compare: nftables would balance connections on this node, so there are no virtual servers to compare")
	}
	t := inspect.Takeover{Excluded: settings.Excluded, Timeouts: settings.Timeouts}
	everywhere := *settings
	everywhere.Excluded = nil
	if t.View, t.Kernel, err = node.Preview(cmd.Context(), &everywhere, version, log); err != nil {
		return nil, err
	}
	return t.Findings(), nil
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
