package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/daemon"
)

func newRun(m *machine) *cobra.Command {
	var flags config.Flags
	var detour detour
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Make the Services of the cluster work on this node",
		Long: `run serves the Services of an API server, or of a directory of manifests, on this node until it
is told to stop (SIGTERM, SIGINT). It then leaves the kernel as it is: Services go on working.

It needs root (CAP_NET_ADMIN and CAP_NET_RAW), a kernel with ip_vs, ip_set, nf_conntrack and dummy,
and the iptables programs. Where it may not write sysctls, a start with --init-only and full root
privileges sets them before.

All flags of kube-proxy are accepted; what does not apply is named in a warning.`,
		Example: `  kube-ipvs run --kubeconfig /etc/kubernetes/kube-ipvs.conf --cluster-cidr 10.244.0.0/16
  kube-ipvs run --manifests /etc/kube-ipvs/manifests --detect-local-mode BridgeInterface --pod-bridge-interface cni0`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			loaded, err := flags.Load()
			if err := errors.Join(err, detour.check()); err != nil {
				return usageError{err, cmd.CommandPath()}
			}
			if do, is := detour.instead(cmd, m, loaded); is {
				tellWarnings(cmd, loaded)
				return do()
			}
			log, level, err := newLogger(cmd.ErrOrStderr(), loaded.LogLevel, loaded.LogFormat)
			if err != nil {
				return err
			}
			for _, warning := range loaded.Warnings {
				log.Warn(warning)
			}
			build := buildVersion()
			return daemon.Run(cmd.Context(), daemon.Config{
				Version: build.Version, Commit: build.Commit, Machine: m.Machine, Flags: &flags, Loaded: loaded, Level: level, Log: log,
			})
		},
	}
	flags.AddRun(cmd.Flags())
	detour.addFlags(cmd)
	return cmd
}
