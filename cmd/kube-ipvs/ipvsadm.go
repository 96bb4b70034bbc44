//go:build linux

package main

import (
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/ipvsadm"
	"github.com/kube-ipvs/kube-ipvs/internal/ipvsadm/command"
	"github.com/kube-ipvs/kube-ipvs/internal/machine"
)

const ipvsadmName = "ipvsadm"

// arguments returns the command line; if the program is called as ipvsadm, it inserts the subcommand.
func arguments(argv []string) []string {
	if filepath.Base(argv[0]) == ipvsadmName {
		return append([]string{ipvsadmName}, argv[1:]...)
	}
	return argv[1:]
}

func newIPVSADM(m *machine.Machine) *cobra.Command {
	return &cobra.Command{
		Use:   ipvsadmName + " [-L|-S] [OPTION...]",
		Short: "Show virtual servers as ipvsadm does",
		Long: `ipvsadm shows the virtual servers of this node with the options and output of ipvsadm 1.31. It
changes nothing, and rejects the options that change virtual servers. Where nftables or the
agent's process balances connections, it says so on stderr, because IPVS then has no virtual servers of the
agent. With --stats and --rate, it also says so if the kernel's counters are stopped.`,
		Example: "  kube-ipvs ipvsadm -Ln\n  kube-ipvs ipvsadm -Ln --stats -t 10.96.0.1:443\n  kube-ipvs ipvsadm -Lnc",
		// ipvsadm has its own option syntax.
		DisableFlagParsing: true, DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			note := func(r ipvsadm.Request) string {
				why := m.WithoutIPVS(cmd.Context())
				if why == "" && r.Counters() {
					why = m.StoppedCounters(cmd.Context())
				}
				return why
			}
			if status := command.Run(cmd.Context(), args, cmd.OutOrStdout(), cmd.ErrOrStderr(), note); status != 0 {
				return statusError(status)
			}
			return nil
		},
	}
}
