//go:build linux

package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/daemon"
	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/machine"
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
				replaces, err := m.Compare(cmd.Context(), settings, version, daemon.ErrorLog(cmd.ErrOrStderr()))
				if err != nil {
					return err
				}
				found.Findings = append(found.Findings, replaces...)
				finding.Sort(found.Findings)
			}
			document := list[finding.Finding]{view.HeaderOf("FindingList"), append([]finding.Finding{}, found.Findings...)}
			err := inspect.Write(cmd.OutOrStdout(), output, document, found.Print)
			return errors.Join(err, daemon.Fatal(found.Findings))
		}),
	}
	flags.AddAgent(cmd.Flags())
	cmd.Flags().BoolVar(&compare, "compare", false, "also compare the Services with the virtual servers of this node's kernel")
	addOutput(cmd, &output)
	return cmd
}
