package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/daemon"
	"github.com/kube-ipvs/kube-ipvs/internal/machine"
)

func newRun(m *machine.Machine) *cobra.Command {
	var flags config.Flags
	var once oneShot
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Serve the Services of the cluster on this node",
		Long: `run is the agent. It serves the Services of an API server, or of a directory of manifests, on
this node until it receives SIGTERM or SIGINT. Then it exits and leaves the kernel unchanged, so Services
keep working.

It requires CAP_NET_ADMIN and CAP_NET_RAW, a kernel with ip_vs, ip_set, nf_conntrack and dummy, and the
iptables programs. Without ip_vs, nftables balances connections. Without ip_set or the iptables programs,
nftables stores the sets and rules, and CAP_NET_RAW is not required. If run cannot write sysctls, run it
once with --init-only and full root privileges to set them.

run accepts all flags of kube-proxy, and warns about flags that have no effect in kube-ipvs.`,
		Example: `  kube-ipvs run --kubeconfig /etc/kubernetes/kube-ipvs.conf --cluster-cidr 10.244.0.0/16
  kube-ipvs run --manifests /etc/kube-ipvs/manifests --detect-local-mode BridgeInterface --pod-bridge-interface cni0`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			loaded, err := flags.Load()
			if err := errors.Join(err, once.check()); err != nil {
				return usageError{err, cmd.CommandPath()}
			}
			if act, set := once.action(cmd, m, loaded); set {
				printWarnings(cmd, loaded)
				return act()
			}
			log, level, err := daemon.NewLogger(cmd.ErrOrStderr(), loaded.LogLevel, loaded.LogFormat)
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
	once.addFlags(cmd)
	return cmd
}
